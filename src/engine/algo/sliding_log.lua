-- Twin of sliding_log.rs (6). The charges lie in the hash KEYS[2], in chunks of up to 64 under the
-- fields `name/number`; a chunk is its sum, then (time, cost) pairs, oldest first.
-- a: sum of all charges, b and c: numbers of the first and last chunk. `whole` is always the
-- newest charge plus P. Chunks that are not between b and c are leftovers of an earlier life.
local CHUNK = 8 + 64 * 16

local function chunk_key(limit, number) return limit.name .. '/' .. string.format('%.0f', number) end

local function read_chunk(limit, number)
  return redis.call('HGET', KEYS[2], chunk_key(limit, number)) or error('sliding log has lost a chunk')
end

-- What no longer counts at t: its sum, and the chunk and offset where the live charges begin.
local function expired(limit, state, t)
  if state.a == 0 or state.whole <= t then return state.a end
  local gone, number = 0, state.b
  while true do
    local chunk = read_chunk(limit, number)
    local newest = struct.unpack('<d', chunk, #chunk - 15)
    if newest + limit.P > t then
      local pos = 9
      while true do
        local at, cost = struct.unpack('<dd', chunk, pos)
        if at + limit.P > t then return gone, number, pos, chunk end
        gone, pos = gone + cost, pos + 16
      end
    end
    gone, number = gone + struct.unpack('<d', chunk), number + 1
  end
end

-- When the charge was made whose end frees `need`, walking on from the first live one; `t, cost`
-- is a charge about to be made, the newest of all.
local function frees(limit, state, number, pos, chunk, need, t, cost)
  while number and number <= state.c do
    chunk = chunk or read_chunk(limit, number)
    while pos < #chunk do
      local at, freed = struct.unpack('<dd', chunk, pos)
      need, pos = need - freed, pos + 16
      if need <= 0 then return at end
    end
    number, pos, chunk = number + 1, 9, nil
  end
  return t
end

decide[6] = function(limit, state, t, cost)
  local gone, number, pos, chunk = expired(limit, state, t)
  local sum = state.a - gone
  local allowed = cost == 0 or sum + cost <= limit.L
  local retry, newest = -1, state.whole - limit.P
  if not allowed and cost <= limit.L then
    retry = frees(limit, state, number, pos, chunk, sum + cost - limit.L) + limit.P - t
  end
  if allowed and cost > 0 then sum, newest = sum + cost, t end
  if sum == 0 then return allowed, limit.L, retry, 0, 0, 0 end
  local left = sum < limit.L and limit.L - sum or 0
  local next_after = frees(limit, state, number, pos, chunk, sum + left + 1 - limit.L, t) + limit.P - t
  return allowed, left, retry, newest + limit.P - t, next_after, 0
end

local function write_chunk(limit, number, sum, pairs_)
  redis.call('HSET', KEYS[2], chunk_key(limit, number), struct.pack('<d', sum) .. pairs_)
end

-- Forgets the chunks before `number` and the charges before `pos` in it.
local function trim(limit, state, number, pos, chunk)
  for old = state.b, (number or state.c + 1) - 1 do
    redis.call('HDEL', KEYS[2], chunk_key(limit, old))
  end
  if not number then
    state.b, state.c = 0, -1
    return
  end
  state.b = number
  if pos > 9 then
    local sum = struct.unpack('<d', chunk)
    for old = 9, pos - 1, 16 do
      local _, cost = struct.unpack('<dd', chunk, old)
      sum = sum - cost
    end
    write_chunk(limit, number, sum, string.sub(chunk, pos))
  end
end

take[6] = function(limit, state, t, cost)
  if state.a == 0 then state.b, state.c = 0, -1 end
  local gone, number, pos, chunk = expired(limit, state, t)
  trim(limit, state, number, pos, chunk)
  state.a = state.a - gone
  local crowded = state.a > 2 * limit.L
  if state.a + cost > MAX_HELD then cost = MAX_HELD - state.a end
  state.a = state.a + cost
  local tail, sum = '', 0
  if state.c >= state.b then
    tail = read_chunk(limit, state.c)
    sum, tail = struct.unpack('<d', tail), string.sub(tail, 9)
    local at, newest = struct.unpack('<dd', tail, #tail - 15)
    if at == t or crowded then
      tail = string.sub(tail, 1, -17) .. struct.pack('<dd', t, newest + cost)
      write_chunk(limit, state.c, sum + cost, tail)
      state.last, state.whole = t, t + limit.P
      return
    end
  end
  if state.c < state.b or #tail + 8 >= CHUNK then tail, sum, state.c = '', 0, state.c + 1 end
  write_chunk(limit, state.c, sum + cost, tail .. struct.pack('<dd', t, cost))
  state.last, state.whole = t, t + limit.P
end

-- The newest charge that is left decides when the log is whole; what is empty behind it goes.
local function drop_empty_tail(limit, state)
  while state.c >= state.b do
    local chunk = read_chunk(limit, state.c)
    local sum, length = struct.unpack('<d', chunk), #chunk
    while length > 8 do
      local at, cost = struct.unpack('<dd', chunk, length - 15)
      if cost > 0 then
        if length < #chunk then write_chunk(limit, state.c, sum, string.sub(chunk, 9, length)) end
        state.whole = at + limit.P
        return
      end
      length = length - 16
    end
    redis.call('HDEL', KEYS[2], chunk_key(limit, state.c))
    state.c = state.c - 1
  end
  state.whole = state.last
end

-- Chunks and charges are in order of time: the first chunk whose newest is not before it has it.
refund[6] = function(limit, state, charged_at, cost)
  if state.a == 0 then return end
  -- All have lapsed, and expired with their hash, while another limit kept the record alive.
  if redis.call('HEXISTS', KEYS[2], chunk_key(limit, state.c)) == 0 then return end
  local low, high = state.b, state.c
  while low < high do
    local middle = floor((low + high) / 2)
    local chunk = read_chunk(limit, middle)
    if struct.unpack('<d', chunk, #chunk - 15) < charged_at then low = middle + 1 else high = middle end
  end
  local chunk = read_chunk(limit, low)
  local sum, pos = struct.unpack('<d', chunk), 9
  while pos < #chunk and struct.unpack('<d', chunk, pos) < charged_at do pos = pos + 16 end
  if pos > #chunk then return end
  local at, charged = struct.unpack('<dd', chunk, pos)
  if at ~= charged_at then return end
  local back = cost < charged and cost or charged
  -- A charge of nothing may stay in its place: nobody counts it.
  local rest = struct.pack('<dd', at, charged - back) .. string.sub(chunk, pos + 16)
  write_chunk(limit, low, sum - back, string.sub(chunk, 9, pos - 1) .. rest)
  state.a = state.a - back
  drop_empty_tail(limit, state)
end
