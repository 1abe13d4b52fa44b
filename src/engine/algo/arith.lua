-- Exact arithmetic on doubles. Every number here is a whole one below 2^53; a product may not be,
-- so it is never formed: it is kept as the sum of two doubles.
local floor, fmod = math.floor, math.fmod

-- a·b as hi + lo without error (Dekker's product on halves split after Veltkamp).
local function product(a, b)
  local hi = a * b
  local x, y = 134217729 * a, 134217729 * b
  local a1, b1 = x - (x - a), y - (y - b)
  local a2, b2 = a - a1, b - b1
  return hi, ((a1 * b1 - hi) + a1 * b2 + a2 * b1) + a2 * b2
end

-- Whole quotient (below 2^52) and remainder of a·b/m.
local function mul_div(a, b, m)
  local hi = a * b
  if hi < 9007199254740992 then
    local rest = fmod(hi, m)
    return (hi - rest) / m, rest
  end
  local lo
  hi, lo = product(a, b)
  local quotient = floor(hi / m)
  local back_hi, back_lo = product(quotient, m)
  local rest = (hi - back_hi) + (lo - back_lo)
  while rest < 0 do quotient, rest = quotient - 1, rest + m end
  while rest >= m do quotient, rest = quotient + 1, rest - m end
  return quotient, rest
end

local MAX_HELD = 4503599627370496

-- Functions of each algorithm by its code. A limit has name, alg, L, B, P, the rate in lowest
-- terms (l requests in p µs), and the spans of one request (one, one_part) and of all (full,
-- full_part). A state has last, whole and a, b, c, whose meaning is the algorithm's own.
local decide, take, refund = {}, {}, {}
