-- Twin of fixed_window.rs (4). a: what was charged in the window that holds `last`.
local function count_at(limit, state, t)
  if state.last - fmod(state.last, limit.P) == t - fmod(t, limit.P) then return state.a end
  return 0
end

decide[4] = function(limit, state, t, cost)
  local count = count_at(limit, state, t)
  local to_end = limit.P - fmod(t, limit.P)
  local allowed = cost == 0 or count + cost <= limit.L
  local retry = -1
  if allowed then
    count = count + cost
  elseif cost <= limit.L then
    retry = to_end
  end
  local left = limit.L - count
  local until_empty = count > 0 and to_end or 0
  return allowed, left > 0 and left or 0, retry, until_empty, until_empty, 0
end

take[4] = function(limit, state, t, cost)
  local count = count_at(limit, state, t) + cost
  state.last, state.a = t, count < MAX_HELD and count or MAX_HELD
  state.whole = t - fmod(t, limit.P) + limit.P
end

refund[4] = function(limit, state, charged_at, cost)
  if charged_at - fmod(charged_at, limit.P) ~= state.last - fmod(state.last, limit.P) then return end
  state.a = state.a > cost and state.a - cost or 0
  if state.a == 0 then state.whole = state.last end
end
