-- Twin of fixed_window.rs (4). a: what was charged in the window that holds `last`. x: in that of t.
local function decide_fixed_window(t, cost)
  local into = fmod(t, P)
  x = last - fmod(last, P) == t - into and a or 0
  local allowed, retry, count = cost == 0 or x + cost <= L, -1, x
  if allowed then
    count = x + cost
  elseif cost <= L then
    retry = P - into
  end
  local until_empty = count > 0 and P - into or 0
  return allowed, count < L and L - count or 0, retry, until_empty, until_empty, 0
end

local function take_fixed_window(t, cost)
  x = x + cost
  last, a, whole = t, x < MAX_HELD and x or MAX_HELD, t - fmod(t, P) + P
end

-- SELDOM --
local function refund_fixed_window(charged_at, cost)
  if charged_at - fmod(charged_at, P) ~= last - fmod(last, P) then return end
  a = a > cost and a - cost or 0
  if a == 0 then whole = last end
end

local function carry_over_fixed_window(old_L)
  if on_change == 1 then a = scaled(a, old_L) end
end
