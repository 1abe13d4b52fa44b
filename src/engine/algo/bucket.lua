-- Twin of bucket.rs, for token-bucket (1), gcra (2) and leaky-bucket (3).
-- a: µs, b: l-ths of a µs, that the bucket was from being whole at `last`. x, y: the same for t.

-- A span far beyond any capacity saturates: its quotient would no longer be exact.
local function span(requests)
  if requests == 1 then return one, one_part end
  if requests * p / l >= 2 * MAX_HELD then return MAX_HELD, 0 end
  return mul_div(requests, p, l)
end

local function decide_bucket(t, cost)
  local us, part = a - (t - last), b
  if us < 0 then us, part = 0, 0 end
  x, y = span(cost)
  x, y = us + x, part + y
  if y >= l then x, y = x + 1, y - l end
  local allowed, retry, delay = true, -1, 0
  if cost > 0 then
    allowed = x < full or (x == full and y <= full_part)
    if not allowed then
      if cost <= B then retry = y > full_part and x - full + 1 or x - full end
    else
      if alg == 3 then delay = part > 0 and us + 1 or us end
      us, part = x, y
    end
  end
  if x >= MAX_HELD then x, y = MAX_HELD, 0 end
  local reset = part > 0 and us + 1 or us
  local free, free_part = full - us, full_part - part
  if free_part < 0 then free, free_part = free - 1, free_part + l end
  if free < 0 then
    -- In debt: until there is room for one.
    local over, over_part = one - free, one_part - free_part
    if over_part > 0 then over = over + 1 end
    return allowed, 0, retry, reset, over, delay
  end
  local left, rest = mul_div(free, l, p)
  rest = rest + free_part
  if rest >= p then left, rest = left + floor(rest / p), fmod(rest, p) end
  -- Of the next request `rest` parts of p are there; they come l in a µs.
  return allowed, left, retry, reset, reset > 0 and -floor((rest - p) / l) or 0, delay
end

local function take_bucket(t)
  last, a, b, whole = t, x, y, y > 0 and t + x + 1 or t + x
end

-- SELDOM --
local function refund_bucket(_, cost)
  local us, part = span(cost)
  us, part = a - us, b - part
  if part < 0 then us, part = us - 1, part + l end
  if us < 0 then us, part = 0, 0 end
  a, b, whole = us, part, last + us + (part > 0 and 1 or 0)
end

-- The same number of used requests, or the same share of the capacity rounded up to a whole one.
local function carry_over_bucket(old_L, old_B, old_P)
  local divisor = gcd(old_L, old_P)
  local old_l, old_p = old_L / divisor, old_P / divisor
  local most = 1125899906842624
  local used, parts = most, 0
  if a * old_l / old_p < 2 * most then
    used, parts = mul_div(a, old_l, old_p)
    parts = parts + b
    used, parts = used + floor(parts / old_p), fmod(parts, old_p)
    if used >= most then used, parts = most, 0 end
  end
  if on_change == 1 then
    if used * B / old_B >= 2 * most then
      used, parts = most, 0
    else
      local share, rest = mul_div(used, B, old_B)
      local more, more_rest = mul_div(parts, B, old_p)
      rest = rest + more + (more_rest > 0 and 1 or 0)
      used, parts = share - floor(-rest / old_B), 0
      if used > most then used = most end
    end
  end
  local grains, rest = mul_div(parts, p, old_p)
  if rest > 0 then grains = grains + 1 end
  local us, part = span(used)
  us, part = us + floor(grains / l), part + fmod(grains, l)
  if part >= l then us, part = us + 1, part - l end
  if us >= MAX_HELD then us, part = MAX_HELD, 0 end
  a, b = us, part
end
