-- Twin of carry_over in algo/mod.rs: `state` was charged under another limit of this name. What
-- was used stays used; another algorithm, or another period of a window, starts whole; so does
-- what is whole by now, for it may have expired.
local function gcd(a, b)
  while b ~= 0 do a, b = b, fmod(a, b) end
  return a
end

-- The limit under which `state` was charged, as far as the algorithms need it.
local function stored_limit(state)
  local divisor = gcd(state.L, state.P)
  local limit = { name = state.name, alg = state.alg, L = state.L, B = state.B, P = state.P,
    l = state.L / divisor, p = state.P / divisor }
  limit.one, limit.one_part = mul_div(1, limit.p, limit.l)
  return limit
end

-- Whether what was used under one means something under the other.
local function same_clockwork(a, b)
  return a.alg == b.alg and (a.alg <= 3 or a.P == b.P)
end

local function carry_over(limit, state, now)
  if not same_clockwork(limit, state) or state.whole <= now then
    state.last, state.whole, state.a, state.b, state.c = 0, 0, 0, 0, 0
  elseif limit.alg <= 3 then
    at_another_rate(stored_limit(state), limit, state)
  end
  state.alg, state.L, state.B, state.P = limit.alg, limit.L, limit.B, limit.P
end
