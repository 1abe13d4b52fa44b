-- All quota of one identity lies in the string KEYS[1], one record per limit. Its head: length and
-- name (rule#index), algorithm's code (1 byte), L and B (4 bytes each), P (double); then last,
-- whole, a, b, c (doubles). Little-endian. It can be read without any rules.
local HEAD, STATE_BYTES = '<Bc0BI4I4d', 40
local A_DAY = 86400000

-- Takes a limit in hand as callers send it: l, p, one, one_part, full, full_part, price (doubles),
-- on_change (1 byte), and the head of its record. Returns where the next begins.
local function hold_limit(pos)
  local after
  l, p, one, one_part, full, full_part, price, on_change, name, alg, L, B, P, after =
    unpack('<dddddddBBc0BI4I4d', ARGV[1], pos)
  head = sub(ARGV[1], pos + 57, after - 1)
  return after
end

local function hold_nothing() last, whole, a, b, c = 0, 0, 0, 0, 0 end

-- Takes in hand what is stored of the limit in hand; true if anything is. Where it was charged
-- under another limit of this name, what was used follows `on_change` (see carry_over in
-- algo/mod.rs); another algorithm, or another period of a window, starts whole; so does what is
-- whole by now, for it may have expired.
local function hold_state(value, now)
  overlay = nil
  local pos, size = 1, #head
  while pos <= #value do
    if sub(value, pos, pos + size - 1) == head then
      last, whole, a, b, c = unpack('<ddddd', value, pos + size)
      return true
    end
    local length = string.byte(value, pos)
    if sub(value, pos + 1, pos + length) == name then
      local _, old_alg, old_L, old_B, old_P, at = unpack(HEAD, value, pos)
      last, whole, a, b, c = unpack('<ddddd', value, at)
      local starts_whole = old_alg ~= alg or (alg > 3 and old_P ~= P) or whole <= now
      if starts_whole or on_change == 2 then
        hold_nothing()
      elseif L > 0 then
        carry_over(old_L, old_B, old_P)
      end
      return true
    end
    pos = pos + length + 18 + STATE_BYTES
  end
  hold_nothing()
  return false
end

-- A check stamped before the last charge is taken then; one stamped over a period before it shows
-- a broken clock, and the bucket starts whole.
local function moment(now)
  if last <= now then return now, 0 end
  if last - now <= P then return last, 0 end
  hold_nothing()
  return now, 1
end

local function record() return head .. pack('<ddddd', last, whole, a, b, c) end

-- Writes new records, the last of which is whole at `latest`, beside those of `value` that are not
-- in `replaced` and not whole yet. The TTL is that of the last to be whole; the charges of sliding
-- logs (KEYS[2]) live as long. Under a given time nothing is forgotten and everything lives a day,
-- for that time is not the server's. A log that is whole takes its charges with it; where their key
-- was not given, its record stays for whoever gives it next.
local function save(value, replaced, records, latest, now, explicit, with_log)
  local pos = 1
  while replaced and pos <= #value do
    local length = string.byte(value, pos)
    local ends = pos + length + 17 + STATE_BYTES
    if not replaced[sub(value, pos + 1, pos + length)] then
      local others = unpack('<d', value, pos + length + 26)
      local keep = explicit or others > now
      if not keep and string.byte(value, pos + length + 1) == 6 then
        keep = not KEYS[2]
        local first, final = unpack('<dd', value, pos + length + 42)
        for number = first, keep and -1 or final do
          local field = sub(value, pos + 1, pos + length) .. '/' .. string.format('%.0f', number)
          redis.call('HDEL', KEYS[2], field)
        end
      end
      if keep then
        records = records .. sub(value, pos, ends)
        if others > latest then latest = others end
      end
    end
    pos = ends + 1
  end
  if records == '' or (latest <= now and not explicit) then
    redis.call('DEL', KEYS[1])
  elseif explicit then
    redis.call('SET', KEYS[1], records, 'PX', A_DAY)
    if with_log then redis.call('PEXPIRE', KEYS[2], A_DAY) end
  else
    -- Rounded up: a TTL must never end early.
    local ends = -floor(-latest / 1000)
    redis.call('SET', KEYS[1], records, 'PXAT', ends)
    if with_log then redis.call('PEXPIREAT', KEYS[2], ends) end
  end
end
