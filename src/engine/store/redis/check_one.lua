-- The usual case of check.lua, with nothing that it does not need: one limit, no idempotency key,
-- nothing stored but this limit unchanged, a clock that is right. Everything else goes on below,
-- and nothing has been written by then.
if not ARGV[2] then
  local cost, after
  cost, l, p, one, one_part, full, full_part, price, on_change, name, alg, L, B, P, after =
    unpack('<ddddddddBBc0BI4I4d', ARGV[1], 9)
  head = sub(ARGV[1], 74, after - 1)
  local usual = L > 0 and after > #ARGV[1]
  if value == '' then
    last, whole, a, b, c = 0, 0, 0, 0, 0
  elseif usual and #value == #head + 40 and sub(value, 1, #head) == head then
    last, whole, a, b, c = unpack('<ddddd', value, #head + 1)
  else
    usual = false
  end
  if usual and last <= now then
    local allowed, left, retry, reset, next_after, delay = decide(now, price)
    if allowed and cost > 0 then
      take(now, price)
      local record = head .. pack('<ddddd', last, whole, a, b, c)
      if explicit then
        redis.call('SET', KEYS[1], record, 'PX', 86400000)
        if alg == 6 then redis.call('PEXPIRE', KEYS[2], 86400000) end
      else
        redis.call('SET', KEYS[1], record, 'PXAT', -floor(-whole / 1000))
        if alg == 6 then redis.call('PEXPIREAT', KEYS[2], -floor(-whole / 1000)) end
      end
    end
    return pack('<Bdddddddd', 0, allowed and 1 or 0, left, retry, reset, next_after, delay, now, 0)
  end
end
