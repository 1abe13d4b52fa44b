-- Gives back a charge, or replaces its cost, once.
-- KEYS[1] quota, KEYS[2] sliding logs' charges, KEYS[3] that it was returned, KEYS[4] the answer
--         to its idempotency key (only when that is to be forgotten).
-- ARGV[2] the charge's id (8 bytes).
-- ARGV[1] time (or -1), when the charge lapses, what it cost, what it shall have cost (doubles),
--         then per limit as in check.lua, followed by the time it was charged at (double).
-- Returns 1, or 0 when it was returned before or has lapsed.
local given, ends, cost, settled, pos = struct.unpack('<dddd', ARGV[1])
local now, explicit = read_clock(given)
if ends <= now then return 0 end
local marked
if explicit then
  marked = redis.call('SET', KEYS[3], '', 'NX', 'PX', 86400000)
else
  marked = redis.call('SET', KEYS[3], '', 'NX', 'PXAT', math.ceil(ends / 1000))
end
if not marked then return 0 end
if KEYS[4] then
  -- The answer of this charge, not of a later one under the same key.
  local remembered = redis.call('GET', KEYS[4])
  if remembered and string.sub(remembered, 17, 24) == ARGV[2] then redis.call('DEL', KEYS[4]) end
end

local records, changed, with_log = load_quota(), false, false
while pos <= #ARGV[1] do
  local limit, charged_at
  limit, pos = read_limit(ARGV[1], pos)
  charged_at, pos = struct.unpack('<d', ARGV[1], pos)
  local state, charged = records[limit.name], limit
  if state and is_other_limit(limit, state) then
    -- The rule has changed since, and somebody was charged under it: its present limit holds.
    limit = stored_limit(state)
  end
  if settled > cost then
    if not state then
      state = fresh_state(limit)
      records[#records + 1] = state
    end
    local t = moment(limit, state, now)
    take[limit.alg](limit, state, t, settled - cost)
    changed = true
  elseif state and same_clockwork(charged, limit) and charged_at <= state.last then
    -- Otherwise the bucket has started anew since.
    refund[limit.alg](limit, state, charged_at, cost - settled)
    changed = true
  end
  if limit.alg == 6 then with_log = true end
end
if changed then save_quota(records, now, explicit, with_log) end
return 1
