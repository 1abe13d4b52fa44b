-- All quota of one identity lies in the string KEYS[1], one record per limit:
--   length and name of the limit (rule#index), algorithm's code (1 byte), L and B (4 bytes each),
--   P, last, whole, a, b, c (doubles). Little-endian. It can be read without any rules.
local RECORD = '<Bc0BI4I4dddddd'

-- A limit as a caller sends it: length and name, algorithm, L, B and l (4 bytes each), P, p, one,
-- one_part, full, full_part (doubles).
local function read_limit(packed, pos)
  local limit = {}
  limit.name, limit.alg, limit.L, limit.B, limit.l, limit.P, limit.p, limit.one, limit.one_part,
    limit.full, limit.full_part, pos = struct.unpack('<Bc0BI4I4I4dddddd', packed, pos)
  return limit, pos
end

local function fresh_state(limit)
  return { name = limit.name, alg = limit.alg, L = limit.L, B = limit.B, P = limit.P,
    last = 0, whole = 0, a = 0, b = 0, c = 0 }
end

local function is_other_limit(limit, state)
  return state.alg ~= limit.alg or state.L ~= limit.L or state.B ~= limit.B or state.P ~= limit.P
end

-- The time: ARGV's when it is not negative (traces and tests), else this server's.
local function read_clock(given)
  if given >= 0 then return given, true end
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2], false
end

local function load_quota()
  local records, count = {}, 0
  local value = redis.call('GET', KEYS[1])
  if value then
    local pos = 1
    while pos <= #value do
      local r = {}
      r.name, r.alg, r.L, r.B, r.P, r.last, r.whole, r.a, r.b, r.c, pos = struct.unpack(RECORD, value, pos)
      count = count + 1
      records[count], records[r.name] = r, r
    end
  end
  return records
end

-- Writes what is not whole yet, with the TTL of the last of it to be; the charges of sliding logs
-- (KEYS[2]) live as long. Under a given time nothing is forgotten and everything lives a day, for
-- that time is not the server's. A log that is whole takes its charges with it; where their key was
-- not given its record stays for the next who gives it.
local function save_quota(records, now, explicit, with_log)
  local parts, latest = {}, 0
  for i = 1, #records do
    local r = records[i]
    local keep = explicit or r.whole > now
    if not keep and r.alg == 6 then
      for number = r.b, KEYS[2] and r.c or -1 do
        redis.call('HDEL', KEYS[2], r.name .. '/' .. string.format('%.0f', number))
      end
      keep = not KEYS[2]
    end
    if keep then
      parts[#parts + 1] = struct.pack(RECORD, #r.name, r.name, r.alg, r.L, r.B, r.P, r.last, r.whole, r.a, r.b, r.c)
      if r.whole > latest then latest = r.whole end
    end
  end
  if #parts == 0 or (not explicit and latest <= now) then
    redis.call('DEL', KEYS[1])
    return
  end
  local value, ends = table.concat(parts), math.ceil(latest / 1000)
  if explicit then
    redis.call('SET', KEYS[1], value, 'PX', 86400000)
    if with_log then redis.call('PEXPIRE', KEYS[2], 86400000) end
  else
    redis.call('SET', KEYS[1], value, 'PXAT', ends)
    if with_log then redis.call('PEXPIREAT', KEYS[2], ends) end
  end
end

-- A check stamped before the last charge is taken then; one stamped over a period before it shows
-- a broken clock, and the bucket starts whole; asked again, it says so again.
local function moment(limit, state, now)
  if state.jumped then return now, true end
  if state.last <= now then return now, false end
  if state.last - now > limit.P then
    state.last, state.whole, state.a, state.b, state.c = 0, 0, 0, 0, 0
    state.jumped = true
    return now, true
  end
  return state.last, false
end
