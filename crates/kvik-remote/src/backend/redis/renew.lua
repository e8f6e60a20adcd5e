local name, ttl = prefix .. 'b:' .. value, tonumber(ARGV[3])
local left = redis.call('PTTL', name)
local is_there = left ~= -2
if is_there and left >= 0 and left < ttl then
  redis.call('PEXPIRE', name, ttl)
end
if redis.call('HEXISTS', sizes, value) == 1 then
  if is_there then
    mark_used(math.max(ttl, left))
  else
    forget(value)
  end
end
return is_there and 1 or 0
