-- Twin of bucket.rs, for token-bucket (1), gcra (2) and leaky-bucket (3).
-- a: µs, b: l-ths of a µs, that the bucket was from being whole at `last`.
local function held_at(state, t)
  local us = state.a - (t - state.last)
  if us < 0 then return 0, 0 end
  return us, state.b
end

-- A span far beyond any capacity saturates: its quotient would no longer be exact.
local function span(limit, requests)
  if requests == 1 then return limit.one, limit.one_part end
  if requests * limit.p / limit.l >= 2 * MAX_HELD then return MAX_HELD, 0 end
  return mul_div(requests, limit.p, limit.l)
end

local function add(limit, us, part, more, more_part)
  us, part = us + more, part + more_part
  if part >= limit.l then us, part = us + 1, part - limit.l end
  if us >= MAX_HELD then return MAX_HELD, 0 end
  return us, part
end

-- How long until `cost <= B` fits, rounded up: until no more is held than what it leaves room for.
local function wait(limit, us, part, cost)
  local cost_us, cost_part = span(limit, cost)
  us, part = us - limit.full + cost_us, part - limit.full_part + cost_part
  if part > 0 then us = us + (part > limit.l and 2 or 1) end
  return us > 0 and us or 0
end

local function remaining(limit, us, part)
  us, part = limit.full - us, limit.full_part - part
  if part < 0 then us, part = us - 1, part + limit.l end
  if us < 0 then return 0 end
  local requests, rest = mul_div(us, limit.l, limit.p)
  return requests + floor((rest + part) / limit.p)
end

local function decide_bucket(limit, state, t, cost)
  local us, part = held_at(state, t)
  local delay, retry, allowed = 0, -1, true
  if cost > 0 then
    local new_us, new_part = add(limit, us, part, span(limit, cost))
    allowed = new_us < limit.full or (new_us == limit.full and new_part <= limit.full_part)
    if allowed then
      if limit.alg == 3 then delay = part > 0 and us + 1 or us end
      us, part = new_us, new_part
    elseif cost <= limit.B then
      retry = wait(limit, us, part, cost)
    end
  end
  local left = remaining(limit, us, part)
  local next_after = left == limit.B and 0 or wait(limit, us, part, left + 1)
  return allowed, left, retry, part > 0 and us + 1 or us, next_after, delay
end

local function take_bucket(limit, state, t, cost)
  local us, part = held_at(state, t)
  us, part = add(limit, us, part, span(limit, cost))
  state.last, state.a, state.b = t, us, part
  state.whole = t + us + (part > 0 and 1 or 0)
end

local function refund_bucket(limit, state, charged_at, cost)
  local us, part = span(limit, cost)
  us, part = state.a - us, state.b - part
  if part < 0 then us, part = us - 1, part + limit.l end
  if us < 0 then us, part = 0, 0 end
  state.a, state.b = us, part
  state.whole = state.last + us + (part > 0 and 1 or 0)
end

-- The same number of used requests at the rate of `limit`; `old` is the stored limit.
local function at_another_rate(old, limit, state)
  local used, parts = 1125899906842624, 0
  if state.a * old.l / old.p < 2 * used then
    local most = used
    used, parts = mul_div(state.a, old.l, old.p)
    parts = parts + state.b
    used, parts = used + floor(parts / old.p), fmod(parts, old.p)
    if used >= most then used, parts = most, 0 end
  end
  local grains, rest = mul_div(parts, limit.p, old.p)
  if rest > 0 then grains = grains + 1 end
  if used * limit.p / limit.l >= 2 * MAX_HELD then
    state.a, state.b = MAX_HELD, 0
  else
    local us, part = mul_div(used, limit.p, limit.l)
    state.a, state.b = add(limit, us, part, floor(grains / limit.l), fmod(grains, limit.l))
  end
end

for code = 1, 3 do
  decide[code], take[code], refund[code] = decide_bucket, take_bucket, refund_bucket
end
