-- One check of one identity against all its limits: all are charged, or none is.
-- KEYS[1] its quota, KEYS[2] its sliding logs' charges, KEYS[3] the answer to its idempotency key.
-- ARGV[1] time (or -1), cost (doubles), then the limits: see hold_limit.
-- ARGV[2] with an idempotency key: how long to remember in µs, number of limits, how often the answer
--         may be given again (-1: always; doubles), id of the charge (8 bytes).
-- Returns a byte (0 decided, 1 remembered, 2 remembered with another cost), with an idempotency
-- key the charge's id, then per limit eight doubles: allowed, remaining, retry_after (-1 none),
-- reset_after, next_after, delay, the time it was decided at, whether the clock had jumped. What
-- was remembered ends with L and B (4 bytes each) of every limit, which may be others by now.
local cost, start = unpack('<d', ARGV[1], 9)
local remember, count, most, id
if ARGV[2] then
  remember, count, most, id = unpack('<dddc8', ARGV[2])
  local remembered = redis.call('GET', KEYS[3])
  if remembered then
    local asked, ends, replays = unpack('<ddd', remembered)
    if ends > now then
      if asked ~= cost then return '\2' end
      -- An answer of other limits than are asked now would be no answer.
      if #remembered == 32 + 72 * count then
        local answer = sub(remembered, 25)
        if most < 0 then return '\1' .. answer end
        if replays < most then
          redis.call('SET', KEYS[3], pack('<ddd', asked, ends, replays + 1) .. answer, 'KEEPTTL')
          return '\1' .. answer
        end
        -- Given often enough: from now on it is counted, and what is remembered stays as it is.
        remember = 0
      end
    end
  end
end

-- Asks what is in hand: whether it allows, its answer, and the time it was given at.
local function ask(what)
  if L == 0 then
    return what == 0, pack('<dddddddd', what == 0 and 1 or 0, 0, -1, 0, 0, 0, now, 0)
  end
  local t, jumped = moment(now)
  local allowed, left, retry, reset, next_after, delay = decide(t, what)
  return allowed, pack('<dddddddd', allowed and 1 or 0, left, retry, reset, next_after, delay, t, jumped), t
end

-- Takes each limit in hand.
local function each(act)
  local at = start
  while at <= #ARGV[1] do
    at = hold_limit(at)
    hold_state(value, now)
    act()
  end
end

-- Charges what was asked last. Nothing is stored by that but the charges of a sliding log, so logs
-- wait until everybody has agreed.
local replaced, records, latest = {}, '', 0
local function charge(t)
  take(t, price)
  replaced[name], records = true, records .. record()
  if whole > latest then latest = whole end
end

local answers, all_allowed, with_log = {}, true, false
each(function()
  local allowed, answer, t = ask(price)
  answers[#answers + 1] = answer
  all_allowed = all_allowed and allowed
  if alg == 6 then
    with_log = true
  elseif all_allowed and cost > 0 then
    charge(t)
  end
end)

if not all_allowed then
  -- Nobody is charged: whoever would have let it through answers as if nothing had been asked.
  local n = 0
  each(function()
    n = n + 1
    if unpack('<d', answers[n]) == 1 then
      local _, peeked = ask(0)
      answers[n] = peeked
    end
  end)
elseif cost > 0 then
  if with_log then
    each(function()
      if alg == 6 then
        local _, _, t = ask(price)
        charge(t)
      end
    end)
  end
  save(value, replaced, records, latest, now, explicit, with_log)
end

local reply = table.concat(answers)
if not ARGV[2] then return '\0' .. reply end

if all_allowed and cost > 0 and remember > 0 then
  local ends, bounds = now + remember, ''
  each(function() bounds = bounds .. pack('<I4I4', L, B) end)
  local answer = pack('<ddd', cost, ends, 0) .. id .. reply .. bounds
  if explicit then
    redis.call('SET', KEYS[3], answer, 'PX', A_DAY)
  else
    redis.call('SET', KEYS[3], answer, 'PXAT', -floor(-ends / 1000))
  end
end
return '\0' .. id .. reply
