-- Exact arithmetic on doubles. Every number here is a whole one below 2^53; a product may not be,
-- so it is never formed: it is kept as the sum of two doubles.
local floor, fmod = math.floor, math.fmod

-- Whole quotient (below 2^52) and remainder of a·b/m.
local function mul_div(a, b, m)
  local hi = a * b
  if hi < 9007199254740992 then
    local rest = fmod(hi, m)
    return (hi - rest) / m, rest
  end
  -- x·y as hi + lo without error (Dekker's product on halves split after Veltkamp).
  local function product(x, y)
    local xy = x * y
    local cx, cy = 134217729 * x, 134217729 * y
    local x1, y1 = cx - (cx - x), cy - (cy - y)
    local x2, y2 = x - x1, y - y1
    return xy, ((x1 * y1 - xy) + x1 * y2 + x2 * y1) + x2 * y2
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

-- The limit in hand: its name (rule#index), algorithm's code, L, B and P; the rate in lowest terms,
-- l requests in p µs; the spans of one request (one, one_part) and of all (full, full_part);
-- `price`, what the request takes from it; `on_change`, what becomes of quota used under another
-- limit of its name (0 keep, 1 scale, 2 reset); `head`, the bytes that its record begins with.
local name, alg, L, B, P, l, p, one, one_part, full, full_part, price, on_change, head
-- What its bucket remembers: the time of the last charge, when it is whole, and three numbers
-- whose meaning is the algorithm's own. x and y: what `decide` found that `take` will need.
local last, whole, a, b, c, x, y
-- Chunks of a sliding log that are not as they are stored.
local overlay

-- Each algorithm has functions of what is in hand. `decide(t, cost)` returns allowed, remaining,
-- retry_after (-1 none), reset_after, next_after and delay. `take(t, cost)` charges what `decide`
-- was asked last, whether or not that was allowed. Seldom needed are `refund(charged_at, cost)`
-- and `carry_over(old_L, old_B, old_P)`, for a state that was charged under another limit: a script
-- pays for each of its functions every time it runs, so those come behind the usual case.
