-- Replaces the lists or the switches, if they are still what the caller read, and writes the event.
-- KEYS: document, events. ARGV: as read ('' for none), as it shall be, event, most events.
-- Returns whether it did, and the event's id or what is there instead.
local held = redis.call('GET', KEYS[1]) or ''
if held ~= ARGV[1] then return {0, held} end
redis.call('SET', KEYS[1], ARGV[2])
return {1, redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[4], '*', 'e', ARGV[3])}
