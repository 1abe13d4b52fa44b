-- A limit as callers send it: the head of its record (length and name, algorithm's code, L and B in
-- 4 bytes each, P), then l (4 bytes), p, one, one_part, full, full_part, price (doubles),
-- on_change (1 byte).
local LIMIT = '<Bc0BI4I4dI4ddddddB'

-- The time: ARGV's when it is not negative (traces and tests), else this server's.
local now, explicit = unpack('<d', ARGV[1]), true
if now < 0 then
  local clock = redis.call('TIME')
  now, explicit = clock[1] * 1000000 + clock[2], false
end
