-- Twin of bucket.rs, for token-bucket (1), gcra (2) and leaky-bucket (3).
-- a: µs, b: l-ths of a µs, that the bucket was from being whole at `last`.

-- A span far beyond any capacity saturates: its quotient would no longer be exact.
local function span(requests)
  if requests == 1 then return one, one_part end
  if requests * p / l >= 2 * MAX_HELD then return MAX_HELD, 0 end
  return mul_div(requests, p, l)
end

-- What is held at t, and what would be with `cost` more.
local function with_cost(t, cost)
  local us, part = a - (t - last), b
  if us < 0 then us, part = 0, 0 end
  local more, more_part = span(cost)
  more, more_part = us + more, part + more_part
  if more_part >= l then more, more_part = more + 1, more_part - l end
  if more >= MAX_HELD then more, more_part = MAX_HELD, 0 end
  return us, part, more, more_part
end

-- How long until `cost <= B` fits, rounded up: until no more is held than what it leaves room for.
local function wait(us, part, cost)
  local cost_us, cost_part = span(cost)
  us, part = us - full + cost_us, part - full_part + cost_part
  if part > 0 then us = us + (part > l and 2 or 1) end
  return us > 0 and us or 0
end

local function decide_bucket(t, cost)
  local us, part, more, more_part = with_cost(t, cost)
  local allowed, retry, delay = true, -1, 0
  if cost > 0 then
    allowed = more < full or (more == full and more_part <= full_part)
    if not allowed then
      if cost <= B then retry = wait(us, part, cost) end
    else
      if alg == 3 then delay = part > 0 and us + 1 or us end
      us, part = more, more_part
    end
  end
  local reset = part > 0 and us + 1 or us
  local free, free_part = full - us, full_part - part
  if free_part < 0 then free, free_part = free - 1, free_part + l end
  if free < 0 then return allowed, 0, retry, reset, wait(us, part, 1), delay end
  local left, rest = mul_div(free, l, p)
  rest = rest + free_part
  if rest >= p then left, rest = left + floor(rest / p), fmod(rest, p) end
  -- Of the next request `rest` parts of p are there; they come l in a µs.
  return allowed, left, retry, reset, reset > 0 and -floor((rest - p) / l) or 0, delay
end

local function take_bucket(t, cost)
  local _
  _, _, a, b = with_cost(t, cost)
  last, whole = t, b > 0 and t + a + 1 or t + a
end

local function seldom_bucket()
  local function refund(_, cost)
    local us, part = span(cost)
    us, part = a - us, b - part
    if part < 0 then us, part = us - 1, part + l end
    if us < 0 then us, part = 0, 0 end
    a, b, whole = us, part, last + us + (part > 0 and 1 or 0)
  end

  -- The same number of used requests, at the rate of the limit in hand.
  local function carry_over(old_l, old_p)
    local most = 1125899906842624
    local used, parts = most, 0
    if a * old_l / old_p < 2 * most then
      used, parts = mul_div(a, old_l, old_p)
      parts = parts + b
      used, parts = used + floor(parts / old_p), fmod(parts, old_p)
      if used >= most then used, parts = most, 0 end
    end
    local grains, rest = mul_div(parts, p, old_p)
    if rest > 0 then grains = grains + 1 end
    local us, part = span(used)
    us, part = us + floor(grains / l), part + fmod(grains, l)
    if part >= l then us, part = us + 1, part - l end
    if us >= MAX_HELD then us, part = MAX_HELD, 0 end
    a, b = us, part
  end
  return refund, carry_over
end
