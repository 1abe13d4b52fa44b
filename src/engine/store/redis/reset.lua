-- Forgets quota of one identity: all of it, or that of one rule.
-- KEYS[1] its quota, KEYS[2] its sliding logs' charges.
-- ARGV[1] the rule; without it everything.
-- Returns how many limits were forgotten.
local sub, byte = string.sub, string.byte
local value = redis.call('GET', KEYS[1]) or ''
local kept, forgotten, pos = '', 0, 1
while pos <= #value do
  local length = byte(value, pos)
  local name, ends = sub(value, pos + 1, pos + length), pos + length + 57
  if ARGV[1] and sub(name, 1, #ARGV[1] + 1) ~= ARGV[1] .. '#' then
    kept = kept .. sub(value, pos, ends)
  else
    forgotten = forgotten + 1
    if ARGV[1] and byte(value, pos + length + 1) == 6 then
      local first, final = struct.unpack('<dd', value, pos + length + 42)
      for number = first, final do
        redis.call('HDEL', KEYS[2], name .. '/' .. string.format('%.0f', number))
      end
    end
  end
  pos = ends + 1
end
if kept == '' then
  redis.call('UNLINK', KEYS[1], KEYS[2])
elseif forgotten > 0 then
  -- What stays is whole no later than all of it was.
  redis.call('SET', KEYS[1], kept, 'KEEPTTL')
end
return forgotten
