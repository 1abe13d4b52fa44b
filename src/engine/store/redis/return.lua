-- Gives back a charge, or replaces its cost, once.
-- KEYS[1] quota, KEYS[2] sliding logs' charges, KEYS[3] that it was returned, KEYS[4] the answer
--         to its idempotency key (only when that is to be forgotten).
-- ARGV[1] time (or -1), when the charge lapses (doubles), then per limit as in check.lua, followed
--         by the time it was charged at, what it cost and what it shall have cost (doubles).
-- ARGV[2] the charge's id (8 bytes).
-- Returns 1, or 0 when it was returned before or has lapsed.
local ends, pos = unpack('<d', ARGV[1], 9)
if ends <= now then return 0 end
local marked
if explicit then
  marked = redis.call('SET', KEYS[3], '', 'NX', 'PX', A_DAY)
else
  marked = redis.call('SET', KEYS[3], '', 'NX', 'PXAT', -floor(-ends / 1000))
end
if not marked then return 0 end
if KEYS[4] then
  -- The answer of this charge, not of a later one under the same key.
  local remembered = redis.call('GET', KEYS[4])
  if remembered and sub(remembered, 25, 32) == ARGV[2] then redis.call('DEL', KEYS[4]) end
end

-- The stored record of the limit in hand, if there is one: takes its limit in hand instead, for if
-- the rule has changed since and somebody was charged under it, its present limit holds.
local function hold_stored(value)
  local at = 1
  while at <= #value do
    local length = string.byte(value, at)
    if sub(value, at + 1, at + length) == name then
      local state_at
      name, alg, L, B, P, state_at = unpack(HEAD, value, at)
      head = sub(value, at, state_at - 1)
      last, whole, a, b, c = unpack('<ddddd', value, state_at)
      local divisor = gcd(L, P)
      l, p = L / divisor, P / divisor
      one, one_part = mul_div(1, p, l)
      full, full_part = mul_div(B, p, l)
      return true
    end
    at = at + length + 18 + STATE_BYTES
  end
  hold_nothing()
  return false
end

local value = redis.call('GET', KEYS[1]) or ''
local replaced, records, latest, changed, with_log = {}, '', 0, false, false
while pos <= #ARGV[1] do
  local charged_at, cost, settled
  pos = hold_limit(pos)
  charged_at, cost, settled, pos = unpack('<ddd', ARGV[1], pos)
  local charged_alg, charged_P = alg, P
  local stored = hold_stored(value)
  local act = false
  if settled > cost then
    local t = moment(now)
    decide(t, settled - cost)
    take(t, settled - cost)
    act = true
  elseif stored and charged_alg == alg and (alg <= 3 or charged_P == P) and charged_at <= last then
    -- Otherwise the bucket has started anew since.
    refund(charged_at, cost - settled)
    act = true
  end
  if act then
    changed, replaced[name] = true, true
    if explicit or whole > now then
      records = records .. record()
    elseif alg == 6 then
      trim()
    end
    if whole > latest then latest = whole end
    with_log = with_log or alg == 6
  end
end
if changed then save(value, replaced, records, latest, now, explicit, with_log) end
return 1
