"""The tool dispatcher: registry, policy, argument schemas, deadlines, audit."""
