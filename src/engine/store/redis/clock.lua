local unpack, pack, sub = struct.unpack, struct.pack, string.sub

-- The time: ARGV's when it is not negative (traces and tests), else this server's.
local now, explicit = unpack('<d', ARGV[1]), true
if now < 0 then
  local clock = redis.call('TIME')
  now, explicit = clock[1] * 1000000 + clock[2], false
end
