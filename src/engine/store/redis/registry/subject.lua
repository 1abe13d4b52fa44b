-- Replaces what is known of an identity, if it is still what the caller read.
-- KEYS: subject. ARGV: as read ('' for none), as it shall be ('' for none), PXAT or PX
-- ('' for no end), milliseconds.
-- Returns whether it did, and what is there otherwise.
local held = redis.call('GET', KEYS[1]) or ''
if held ~= ARGV[1] then return {0, held} end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
elseif ARGV[3] == '' then
  redis.call('SET', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[2], ARGV[3], ARGV[4])
end
return {1, ''}
