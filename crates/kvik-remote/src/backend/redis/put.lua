local ttl, all_max, owner_max = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local bytes = #ARGV[3]

for _, gone in ipairs(redis.call('ZRANGEBYSCORE', expires, '-inf', now, 'LIMIT', 0, 64)) do
  forget(gone)
end
if redis.call('HEXISTS', sizes, value) == 1 then
  forget(value)
end
if (all_max > 0 and bytes > all_max) or (owner_max > 0 and bytes > owner_max) then
  return
end

local function make_room(order, field, max)
  while max > 0 and tonumber(redis.call('HGET', totals, field) or 0) + bytes > max do
    local oldest = redis.call('ZRANGE', order, 0, 0)[1]
    if not oldest then
      return
    end
    forget(oldest)
  end
end
make_room(used .. ':' .. owner, owner, owner_max)
make_room(used, 'all', all_max)

redis.call('SET', prefix .. 'b:' .. value, ARGV[3], 'PX', ttl)
redis.call('HSET', sizes, value, bytes)
redis.call('HINCRBY', totals, 'all', bytes)
redis.call('HINCRBY', totals, owner, bytes)
mark_used(ttl)
