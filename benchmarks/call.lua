-- The request wrk repeats, and the one line it reports. Values come from the environment, set by load.py.
wrk.method = os.getenv("BENCH_METHOD")
wrk.body = os.getenv("BENCH_BODY")
for name, value in os.getenv("BENCH_HEADERS"):gmatch("([^:\n]+): ([^\n]+)") do
  wrk.headers[name] = value
end

local pause = tonumber(os.getenv("BENCH_PAUSE_MS") or "0")
if pause > 0 then
  function delay()
    return pause
  end
end

local report = '{"requests":%d,"us":%d,"p50_us":%d,"p99_us":%d,"socket":%d,"timeout":%d,"status":%d}\n'

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(report:format(summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write, errors.timeout, errors.status))
end
