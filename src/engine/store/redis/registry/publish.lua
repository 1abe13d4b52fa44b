-- Makes a text the policy, if the version before it is still what the caller read.
-- KEYS: current, history, events. ARGV: version as read ('' for none), version as it shall be,
-- its number, its text, the number that is kept no longer, event, most events.
-- Returns whether it did, and the event's id or the version that is there instead.
local held = redis.call('GET', KEYS[1]) or ''
if held ~= ARGV[1] then return {0, held} end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2], ARGV[3] .. ':text', ARGV[4])
redis.call('HDEL', KEYS[2], ARGV[5], ARGV[5] .. ':text')
return {1, redis.call('XADD', KEYS[3], 'MAXLEN', ARGV[7], '*', 'e', ARGV[6])}
