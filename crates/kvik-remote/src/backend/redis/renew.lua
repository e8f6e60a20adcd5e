local ttl = tonumber(ARGV[3])
local is_there = redis.call('PEXPIRE', prefix .. 'b:' .. value, ttl) == 1
if redis.call('HEXISTS', sizes, value) == 1 then
  if is_there then
    mark_used(ttl)
  else
    forget(value)
  end
end
