-- Twin of sliding_window.rs (5). a, b: counts of the window that holds `last` and the one before.
-- x, y: of the window that holds t and the one before.

-- The least whole `into < P` with previous·(P − into) ≤ room·P, or nil.
local function light_enough(previous, room)
  if previous <= room then return 0 end
  local left = mul_div(room, P, previous)
  if left > 0 then return P - left end
end

local function window_wait(current, previous, into, cost)
  local room = L - cost
  if room >= current then
    local this = light_enough(previous, room - current)
    if this then return this > into and this - into or 0 end
  end
  return P - into + (light_enough(current, room) or P)
end

local function decide_sliding_window(t, cost)
  local into, charged = fmod(t, P), last - fmod(last, P)
  if t - into == charged then
    x, y = a, b
  elseif t - into == charged + P then
    x, y = 0, a
  else
    x, y = 0, 0
  end
  -- The estimate, rounded up.
  local weighted, rest = mul_div(y, P - into, P)
  if rest > 0 then weighted = weighted + 1 end
  local allowed, retry, current = cost == 0 or weighted + x + cost <= L, -1, x
  if allowed then
    current = x + cost
  elseif cost <= L then
    retry = window_wait(x, y, into, cost)
  end
  if current == 0 and y == 0 then return allowed, L, retry, 0, 0, 0 end
  local left = L - weighted - current
  if left < 0 then left = 0 end
  local reset = (current > 0 and 2 * P or P) - into
  return allowed, left, retry, reset, window_wait(current, y, into, left + 1), 0
end

local function take_sliding_window(t, cost)
  x = x + cost
  last, a, b, whole = t, x < MAX_HELD and x or MAX_HELD, y, t - fmod(t, P) + 2 * P
end

-- SELDOM --
local function refund_sliding_window(charged_at, cost)
  local charged, newest = charged_at - fmod(charged_at, P), last - fmod(last, P)
  if charged == newest then
    a = a > cost and a - cost or 0
  elseif charged + P == newest then
    b = b > cost and b - cost or 0
  end
  if a == 0 then whole = b > 0 and newest + P or last end
end

local function carry_over_sliding_window(old_L)
  if on_change == 1 then a, b = scaled(a, old_L), scaled(b, old_L) end
end
