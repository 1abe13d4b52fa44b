-- The usual case of the usual limit, written out: one token bucket or gcra, a cost of 1, products
-- below 2^53 (the caller sees to these), and nothing stored but this limit, unchanged, by a clock
-- that is right. It makes no functions, for making those of bucket.lua costs more than running all
-- of this. Everything else goes on below, and nothing has been written by then.
-- Returns five doubles: the time it was decided at, remaining, retry_after (-1: allowed),
-- reset_after, next_after.
local usual_head = sub(ARGV[1], 74)
local last_at, us, part, _ = 0, 0, 0
if value ~= '' then
  if #value == #usual_head + 40 and sub(value, 1, #usual_head) == usual_head then
    last_at, _, us, part = unpack('<dddd', value, #usual_head + 1)
  else
    last_at = now + 1
  end
end
if last_at <= now then
  local tokens, micros, one_us, one_rest, full_us, full_rest = unpack('<dddddd', ARGV[1], 17)
  us = us - (now - last_at)
  if us < 0 then us, part = 0, 0 end
  local charged, charged_part, retry = us + one_us, part + one_rest, -1
  if charged_part >= tokens then charged, charged_part = charged + 1, charged_part - tokens end
  if charged < full_us or (charged == full_us and charged_part <= full_rest) then
    us, part = charged, charged_part
  else
    retry = charged - full_us
    if charged_part > full_rest then retry = retry + 1 end
  end
  local reset = part > 0 and us + 1 or us
  -- What is free, in parts of which `micros` make a request and `tokens` a µs.
  local free = (full_us - us) * tokens + full_rest - part
  if free >= 0 then
    if retry < 0 then
      local whole_at = now + reset
      local record = pack('<c0ddddd', usual_head, now, whole_at, us, part, 0)
      if explicit then
        redis.call('SET', KEYS[1], record, 'PX', 86400000)
      else
        redis.call('SET', KEYS[1], record, 'PXAT', (whole_at + -whole_at % 1000) / 1000)
      end
    end
    local rest = free % micros
    local missing = micros - rest
    return pack('<ddddd', now, (free - rest) / micros, retry, reset, (missing + -missing % tokens) / tokens)
  end
end
