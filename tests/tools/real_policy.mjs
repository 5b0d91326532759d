// The real OpenClaw's own tool policy, asked the questions in a file: node real_policy.mjs <package> <questions> <answers>
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, questions, answers] = process.argv.slice(2);
const dist = path.join(folder, "dist");
const files = fs.readdirSync(dist).filter((name) => /^(tool-policy|agent-tools\.policy|requester-tool-policy)/.test(name) && name.endsWith(".mjs"));

// The build renames files and exports; functions keep their names.
async function real(name) {
  for (const file of files) {
    const text = fs.readFileSync(path.join(dist, file), "utf8");
    const exported = text.includes(`function ${name}(`) && text.match(new RegExp(`[{,]\\s*${name} as (\\w+)`));
    if (exported) return (await import(pathToFileURL(path.join(dist, file))))[exported[1]];
  }
  throw new Error(`this OpenClaw has no ${name}`);
}

const effective = await real("resolveEffectiveToolPolicy");
const profile = await real("resolveToolProfilePolicy");
const extended = await real("mergeAlsoAllowPolicy");
const requester = await real("resolveRequesterToolPolicies");
const build = await real("buildDefaultToolPolicyPipelineSteps");
const apply = await real("applyToolPolicyPipeline");

function decide({ config, who, source, tool }) {
  const [modelProvider, ...model] = (who.model ?? "").split("/");
  const rules = effective({
    config, sessionKey: who.session, agentId: who.agent,
    modelProvider: modelProvider || undefined, modelId: model.join("/") || undefined,
  });
  const sender = who.sender ?? {};
  const people = requester({
    config, sessionKey: who.session, agentId: rules.agentId, messageProvider: who.channel, accountId: null,
    senderId: sender.id, senderName: sender.name, senderUsername: sender.username, senderE164: sender.e164,
    senderPolicyMode: "always",
  });
  const steps = build({
    ...rules,
    profilePolicy: extended(profile(rules.profile), rules.profileAlsoAllow),
    providerProfilePolicy: extended(profile(rules.providerProfile), rules.providerProfileAlsoAllow),
    groupPolicy: people.groupPolicy,
    senderPolicy: people.senderPolicy,
  });
  const guest = source.includes("/") ? { pluginId: source.split("/")[1] } : undefined;
  return apply({ tools: [{ name: tool }], toolMeta: () => guest, warn() {}, steps }).length === 1;
}

fs.writeFileSync(answers, JSON.stringify(JSON.parse(fs.readFileSync(questions, "utf8")).map(decide)));
process.exit(0);
