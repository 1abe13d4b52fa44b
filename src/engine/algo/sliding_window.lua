-- Twin of sliding_window.rs (5). a, b: counts of the window that holds `last` and the one before.
local function counts_at(t)
  local start, charged = t - fmod(t, P), last - fmod(last, P)
  if start == charged then return a, b end
  if start == charged + P then return 0, a end
  return 0, 0
end

-- The estimate, rounded up.
local function used_ceil(current, previous, into)
  local weighted, rest = mul_div(previous, P - into, P)
  return weighted + (rest > 0 and 1 or 0) + current
end

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
  local current, previous = counts_at(t)
  local into = fmod(t, P)
  local allowed, retry = cost == 0 or used_ceil(current, previous, into) + cost <= L, -1
  if allowed then
    current = current + cost
  elseif cost <= L then
    retry = window_wait(current, previous, into, cost)
  end
  if current == 0 and previous == 0 then return allowed, L, retry, 0, 0, 0 end
  local left = L - used_ceil(current, previous, into)
  if left < 0 then left = 0 end
  local reset = (current > 0 and 2 * P or P) - into
  return allowed, left, retry, reset, window_wait(current, previous, into, left + 1), 0
end

local function take_sliding_window(t, cost)
  a, b = counts_at(t)
  a = a + cost
  if a > MAX_HELD then a = MAX_HELD end
  last, whole = t, t - fmod(t, P) + 2 * P
end

local function seldom_sliding_window()
  local function refund(charged_at, cost)
    local charged, newest = charged_at - fmod(charged_at, P), last - fmod(last, P)
    if charged == newest then
      a = a > cost and a - cost or 0
    elseif charged + P == newest then
      b = b > cost and b - cost or 0
    end
    if a == 0 then whole = b > 0 and newest + P or last end
  end
  return refund, function() end
end
