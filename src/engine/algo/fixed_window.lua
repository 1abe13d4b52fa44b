-- Twin of fixed_window.rs (4). a: what was charged in the window that holds `last`.
local function count_at(t)
  if last - fmod(last, P) == t - fmod(t, P) then return a end
  return 0
end

local function decide_fixed_window(t, cost)
  local count = count_at(t)
  local to_end = P - fmod(t, P)
  local allowed, retry = cost == 0 or count + cost <= L, -1
  if allowed then
    count = count + cost
  elseif cost <= L then
    retry = to_end
  end
  local left = L - count
  local until_empty = count > 0 and to_end or 0
  return allowed, left > 0 and left or 0, retry, until_empty, until_empty, 0
end

local function take_fixed_window(t, cost)
  local count = count_at(t) + cost
  last, a, whole = t, count < MAX_HELD and count or MAX_HELD, t - fmod(t, P) + P
end

local function seldom_fixed_window()
  local function refund(charged_at, cost)
    if charged_at - fmod(charged_at, P) ~= last - fmod(last, P) then return end
    a = a > cost and a - cost or 0
    if a == 0 then whole = last end
  end
  return refund, function() end
end
