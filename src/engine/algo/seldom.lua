-- What only seldom needed functions need.
local function gcd(m, n)
  while n ~= 0 do m, n = n, fmod(m, n) end
  return m
end

-- count·L/old_L, rounded up.
local function scaled(count, old_L)
  if count * L / old_L >= 2 * MAX_HELD then return MAX_HELD end
  local whole_part, rest = mul_div(count, L, old_L)
  if rest > 0 then whole_part = whole_part + 1 end
  return whole_part < MAX_HELD and whole_part or MAX_HELD
end

