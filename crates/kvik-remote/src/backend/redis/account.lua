local prefix, value = ARGV[1], ARGV[2]
local owner = value:sub(1, 16)
local used, expires = prefix .. 'used', prefix .. 'expires'
local sizes, totals = prefix .. 'sizes', prefix .. 'totals'
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function forget(gone)
  local whose = gone:sub(1, 16)
  local bytes = tonumber(redis.call('HGET', sizes, gone) or 0)
  redis.call('UNLINK', prefix .. 'b:' .. gone)
  redis.call('ZREM', used, gone)
  redis.call('ZREM', used .. ':' .. whose, gone)
  redis.call('ZREM', expires, gone)
  redis.call('HDEL', sizes, gone)
  redis.call('HINCRBY', totals, 'all', -bytes)
  if redis.call('HINCRBY', totals, whose, -bytes) <= 0 then
    redis.call('HDEL', totals, whose)
  end
end

local function mark_used(ttl)
  redis.call('ZADD', used, now, value)
  redis.call('ZADD', used .. ':' .. owner, now, value)
  redis.call('ZADD', expires, now + ttl, value)
end
