-- Twin of sliding_window.rs (5). a, b: counts of the window that holds `last` and the one before.
local function counts_at(limit, state, t)
  local start = t - fmod(t, limit.P)
  local charged = state.last - fmod(state.last, limit.P)
  if start == charged then return state.a, state.b end
  if start == charged + limit.P then return 0, state.a end
  return 0, 0
end

-- The estimate, rounded up.
local function used_ceil(limit, current, previous, into)
  local weighted, rest = mul_div(previous, limit.P - into, limit.P)
  return weighted + (rest > 0 and 1 or 0) + current
end

-- The least whole `into < P` with previous·(P − into) ≤ room·P, or nil.
local function light_enough(limit, previous, room)
  if previous <= room then return 0 end
  local left = mul_div(room, limit.P, previous)
  if left > 0 then return limit.P - left end
end

local function window_wait(limit, current, previous, into, cost)
  local room = limit.L - cost
  if room >= current then
    local this = light_enough(limit, previous, room - current)
    if this then return this > into and this - into or 0 end
  end
  return limit.P - into + (light_enough(limit, current, room) or limit.P)
end

decide[5] = function(limit, state, t, cost)
  local current, previous = counts_at(limit, state, t)
  local into = fmod(t, limit.P)
  local allowed = cost == 0 or used_ceil(limit, current, previous, into) + cost <= limit.L
  local retry = -1
  if allowed then
    current = current + cost
  elseif cost <= limit.L then
    retry = window_wait(limit, current, previous, into, cost)
  end
  if current == 0 and previous == 0 then return allowed, limit.L, retry, 0, 0, 0 end
  local left = limit.L - used_ceil(limit, current, previous, into)
  if left < 0 then left = 0 end
  local reset = (current > 0 and 2 * limit.P or limit.P) - into
  return allowed, left, retry, reset, window_wait(limit, current, previous, into, left + 1), 0
end

local function whole_of(limit, state)
  local start = state.last - fmod(state.last, limit.P)
  if state.a > 0 then return start + 2 * limit.P end
  return state.b > 0 and start + limit.P or state.last
end

take[5] = function(limit, state, t, cost)
  local current, previous = counts_at(limit, state, t)
  current = current + cost
  state.last, state.a, state.b = t, current < MAX_HELD and current or MAX_HELD, previous
  state.whole = whole_of(limit, state)
end

refund[5] = function(limit, state, charged_at, cost)
  local charged = charged_at - fmod(charged_at, limit.P)
  local newest = state.last - fmod(state.last, limit.P)
  if charged == newest then
    state.a = state.a > cost and state.a - cost or 0
  elseif charged + limit.P == newest then
    state.b = state.b > cost and state.b - cost or 0
  end
  state.whole = whole_of(limit, state)
end
