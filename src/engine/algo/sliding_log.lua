-- Twin of sliding_log.rs (6). The charges lie in the hash KEYS[2], in chunks of up to 64 under the
-- fields `name/number`; a chunk is its sum, then (time, cost) pairs, oldest first.
-- a: sum of all charges, b and c: numbers of the first and last chunk. `whole` is always the
-- newest charge plus P. Chunks that are not between b and c are leftovers of an earlier life.
local CHUNK = 8 + 64 * 16

local function chunk_key(number) return name .. '/' .. string.format('%.0f', number) end

local function read_chunk(number)
  if overlay then return overlay[number] end
  return redis.call('HGET', KEYS[2], chunk_key(number))
end

local function write_chunk(number, sum, charges)
  redis.call('HSET', KEYS[2], chunk_key(number), pack('<d', sum) .. charges)
end

-- What no longer counts at t: its sum, and the chunk and offset where the live charges begin.
local function expired(t)
  if a == 0 or whole <= t then return a end
  local gone, number = 0, b
  while true do
    local chunk = read_chunk(number)
    if not chunk then
      -- Somebody removed the charges and left the record: as with any key that is gone, the quota
      -- is whole.
      a, whole = 0, last
      return 0
    end
    if unpack('<d', chunk, #chunk - 15) + P > t then
      local pos = 9
      while true do
        local at, cost = unpack('<dd', chunk, pos)
        if at + P > t then return gone, number, pos, chunk end
        gone, pos = gone + cost, pos + 16
      end
    end
    gone, number = gone + unpack('<d', chunk), number + 1
  end
end

-- When the charge was made whose end frees `need`, walking on from the first live one; beyond the
-- last there is only the charge about to be made, at t.
local function frees(number, pos, chunk, need, t)
  while number and number <= c do
    chunk = chunk or read_chunk(number)
    while pos < #chunk do
      local at, freed = unpack('<dd', chunk, pos)
      need, pos = need - freed, pos + 16
      if need <= 0 then return at end
    end
    number, pos, chunk = number + 1, 9, nil
  end
  return t
end

local function decide_sliding_log(t, cost)
  local gone, number, pos, chunk = expired(t)
  local sum = a - gone
  local allowed, retry, newest = cost == 0 or sum + cost <= L, -1, whole - P
  if not allowed and cost <= L then
    retry = frees(number, pos, chunk, sum + cost - L) + P - t
  end
  if allowed and cost > 0 then sum, newest = sum + cost, t end
  if sum == 0 then return allowed, L, retry, 0, 0, 0 end
  local left = sum < L and L - sum or 0
  local next_after = frees(number, pos, chunk, sum + left + 1 - L, t) + P - t
  return allowed, left, retry, newest + P - t, next_after, 0
end

-- Forgets the chunks before `number` and the charges before `pos` in it.
local function trim(number, pos, chunk)
  for old = b, (number or c + 1) - 1 do
    redis.call('HDEL', KEYS[2], chunk_key(old))
  end
  if not number then
    b, c = 0, -1
    return
  end
  b = number
  if pos > 9 then
    local sum = unpack('<d', chunk)
    for old = 9, pos - 1, 16 do
      local _, cost = unpack('<dd', chunk, old)
      sum = sum - cost
    end
    write_chunk(number, sum, sub(chunk, pos))
  end
end

local function take_sliding_log(t, cost)
  if a == 0 then b, c = 0, -1 end
  if overlay then
    for number = b, overlay.stored do
      redis.call('HDEL', KEYS[2], chunk_key(number))
      if overlay[number] then redis.call('HSET', KEYS[2], chunk_key(number), overlay[number]) end
    end
    overlay = nil
  end
  local gone, number, pos, chunk = expired(t)
  trim(number, pos, chunk)
  a = a - gone
  local crowded = a > 2 * L
  if a + cost > MAX_HELD then cost = MAX_HELD - a end
  a, last, whole = a + cost, t, t + P
  local tail, sum = '', 0
  if c >= b then
    tail = read_chunk(c)
    sum, tail = unpack('<d', tail), sub(tail, 9)
    local at, newest = unpack('<dd', tail, #tail - 15)
    if at == t or crowded then
      write_chunk(c, sum + cost, sub(tail, 1, -17) .. pack('<dd', t, newest + cost))
      return
    end
  end
  if c < b or #tail + 8 >= CHUNK then tail, sum, c = '', 0, c + 1 end
  write_chunk(c, sum + cost, tail .. pack('<dd', t, cost))
end

-- SELDOM --
-- The newest charge that is left decides when the log is whole; what is empty behind it goes.
local function drop_empty_tail()
  while c >= b do
    local chunk = read_chunk(c)
    local sum, length = unpack('<d', chunk), #chunk
    while length > 8 do
      local at, cost = unpack('<dd', chunk, length - 15)
      if cost > 0 then
        if length < #chunk then write_chunk(c, sum, sub(chunk, 9, length)) end
        whole = at + P
        return
      end
      length = length - 16
    end
    redis.call('HDEL', KEYS[2], chunk_key(c))
    c = c - 1
  end
  whole = last
end

-- Chunks and charges are in order of time: the first chunk whose newest is not before it has it.
local function refund_sliding_log(charged_at, cost)
  if a == 0 then return end
  -- All have lapsed, and expired with their hash, while another limit kept the record alive.
  if redis.call('HEXISTS', KEYS[2], chunk_key(c)) == 0 then return end
  local low, high = b, c
  while low < high do
    local middle = floor((low + high) / 2)
    local chunk = read_chunk(middle)
    if unpack('<d', chunk, #chunk - 15) < charged_at then low = middle + 1 else high = middle end
  end
  local chunk = read_chunk(low)
  local sum, pos = unpack('<d', chunk), 9
  while pos < #chunk and unpack('<d', chunk, pos) < charged_at do pos = pos + 16 end
  if pos > #chunk then return end
  local at, charged = unpack('<dd', chunk, pos)
  if at ~= charged_at then return end
  local back = cost < charged and cost or charged
  -- A charge of nothing may stay in its place: nobody counts it.
  local rest = pack('<dd', at, charged - back) .. sub(chunk, pos + 16)
  write_chunk(low, sum - back, sub(chunk, 9, pos - 1) .. rest)
  a = a - back
  drop_empty_tail()
end

-- Scales the sums of the newest charges, so that whatever still counts at any time is rounded up as
-- one number. What comes of it lies in the overlay until there is a charge.
local function carry_over_sliding_log(old_L)
  if on_change ~= 1 or a == 0 or not read_chunk(b) then return end
  local charges, sum, scaled_sum = {}, 0, 0
  for number = c, b, -1 do
    local chunk = read_chunk(number)
    for pos = #chunk - 15, 9, -16 do
      local at, cost = unpack('<dd', chunk, pos)
      sum = sum + cost
      local now_sum = scaled(sum, old_L)
      if now_sum > scaled_sum then
        charges[#charges + 1] = { at, now_sum - scaled_sum }
        scaled_sum = now_sum
      end
    end
  end
  overlay = { stored = c }
  a, c, whole = scaled_sum, b - 1, charges[1][1] + P
  local texts, in_chunk = {}, 0
  for n = #charges, 1, -1 do
    texts[#texts + 1] = pack('<dd', charges[n][1], charges[n][2])
    in_chunk = in_chunk + charges[n][2]
    if #texts == 64 or n == 1 then
      c = c + 1
      overlay[c] = pack('<d', in_chunk) .. table.concat(texts)
      texts, in_chunk = {}, 0
    end
  end
end
