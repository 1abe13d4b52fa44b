-- wrk2's method on wrk's own loop: requests have planned moments, connections wait for theirs with
-- timers of whole milliseconds, and time is counted from the planned moment. The rate comes as an
-- argument: wrk ... -s scripts/wrk-planned.lua URL -- 70000
local ffi = require("ffi")
ffi.cdef [[
  typedef struct { long s; long ns; } moment;
  int clock_gettime(int clock, moment *at);
]]
local moment = ffi.new("moment")
local function now_us()
  ffi.C.clock_gettime(1, moment) -- CLOCK_MONOTONIC
  return tonumber(moment.s) * 1e6 + tonumber(moment.ns) / 1e3
end

local threads = {}
function setup(thread)
  threads[#threads + 1] = thread
end

function init(args)
  step_us = 1e6 / tonumber(args[1])
  next_us = nil
  planned, first, last = {}, 1, 0
  counts, total = {}, 0
end

-- The next moment of the plan is for whoever asks next.
function delay()
  local now = now_us()
  next_us = (next_us or now) + step_us
  last = last + 1
  planned[last] = next_us
  return math.max(0, math.ceil((next_us - now) / 1e3))
end

-- Answers come in the order of the requests, near enough: one server, one thread.
function response()
  if first > last then return end
  local late = math.floor((now_us() - planned[first]) / 10)
  planned[first], first = nil, first + 1
  late = math.max(0, math.min(late, 1000000))
  counts[late], total = (counts[late] or 0) + 1, total + 1
end

local function percentile(counts, total, share)
  local places, seen = {}, 0
  for place in pairs(counts) do places[#places + 1] = place end
  table.sort(places)
  for _, place in ipairs(places) do
    seen = seen + counts[place]
    if seen >= total * share then return (place + 1) * 10 end
  end
  return 0
end

function done(summary)
  local counts, total = {}, 0
  for _, thread in ipairs(threads) do
    total = total + thread:get("total")
    for place, count in pairs(thread:get("counts")) do
      counts[place] = (counts[place] or 0) + count
    end
  end
  io.write(string.format("planned sent %d p50 %d p99 %d\n",
    summary.requests, percentile(counts, total, 0.5), percentile(counts, total, 0.99)))
end
