-- Writes the event of a change to an identity, and that something may be known of it.
-- KEYS: events, subjects. ARGV: event, most events, identity. Returns the event's id.
local id = redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], '*', 'e', ARGV[1])
redis.call('HSET', KEYS[2], ARGV[3], id)
return id
