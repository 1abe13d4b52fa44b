-- What one gateway sees of keys that may be hot, for what all others see. KEYS: hot.
-- ARGV: the gateway, its report or nothing, for how many microseconds a report is good.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
  redis.call('PEXPIRE', KEYS[1], 60000)
end
local told = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local at, report = string.match(all[i + 1], '^(%d+) (.*)$')
  if not at or math.abs(now - at) > tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    told[#told + 1] = report
  end
end
return told
