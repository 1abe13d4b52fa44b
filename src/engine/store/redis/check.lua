-- One check of one identity against all its limits: all are charged, or none is.
-- KEYS[1] its quota, KEYS[2] its sliding logs' charges, KEYS[3] the answer to its idempotency key.
-- ARGV[1] time (or -1), cost (doubles), then the limits: see read_limit.
-- ARGV[2] with an idempotency key: how long to remember in µs, number of limits (doubles), id of the
-- charge (8 bytes).
-- Returns a byte (0 decided, 1 remembered, 2 remembered with another cost), with an idempotency
-- key the charge's id, then per limit eight doubles: allowed, remaining, retry_after (-1 none),
-- reset_after, next_after, delay, the time it was decided at, whether the clock had jumped. What was
-- remembered ends with L and B (4 bytes each) of every limit, which may be others by now.
local given, cost, pos = struct.unpack('<dd', ARGV[1])
local now, explicit = read_clock(given)

local remember, count, id
if ARGV[2] then
  remember, count, id = struct.unpack('<ddc8', ARGV[2])
  local remembered = redis.call('GET', KEYS[3])
  if remembered then
    local asked, ends = struct.unpack('<dd', remembered)
    if ends > now then
      if asked ~= cost then return '\2' end
      -- An answer of other limits than are asked now would be no answer.
      if #remembered == 24 + 72 * count then return '\1' .. string.sub(remembered, 17) end
    end
  end
end

local records = load_quota()
local limits, states, answers, all_allowed, with_log = {}, {}, {}, true, false

local function answer(limit, state, ask)
  if limit.L == 0 then return { ask == 0, 0, -1, 0, 0, 0, now, 0 } end
  local t, jumped = moment(limit, state, now)
  local result = { decide[limit.alg](limit, state, t, ask) }
  result[7], result[8] = t, jumped and 1 or 0
  return result
end

while pos <= #ARGV[1] do
  local limit, n = nil, #limits + 1
  limit, pos = read_limit(ARGV[1], pos)
  local state = records[limit.name]
  if not state then
    state = fresh_state(limit)
  elseif limit.L > 0 and is_other_limit(limit, state) then
    carry_over(limit, state, now)
  end
  local result = answer(limit, state, cost)
  limits[n], states[n], answers[n] = limit, state, result
  if limit.alg == 6 then with_log = true end
  if not result[1] then all_allowed = false end
end

if not all_allowed then
  -- Nobody is charged: whoever would have let it through answers as if nothing had been asked.
  for n = 1, #limits do
    if answers[n][1] then answers[n] = answer(limits[n], states[n], 0) end
  end
elseif cost > 0 then
  for n = 1, #limits do
    local state = states[n]
    take[limits[n].alg](limits[n], state, answers[n][7], cost)
    if not records[state.name] then records[#records + 1] = state end
  end
  save_quota(records, now, explicit, with_log)
end

for n = 1, #answers do
  local r = answers[n]
  answers[n] = struct.pack('<dddddddd', r[1] and 1 or 0, r[2], r[3], r[4], r[5], r[6], r[7], r[8])
end
local reply = table.concat(answers)
if not ARGV[2] then return '\0' .. reply end

if all_allowed and cost > 0 then
  local ends = now + remember
  local value = struct.pack('<dd', cost, ends) .. id .. reply
  for n = 1, #limits do value = value .. struct.pack('<I4I4', limits[n].L, limits[n].B) end
  if explicit then
    redis.call('SET', KEYS[3], value, 'PX', 86400000)
  else
    redis.call('SET', KEYS[3], value, 'PXAT', math.ceil(ends / 1000))
  end
end
return '\0' .. id .. reply
