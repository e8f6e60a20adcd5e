local newest = tonumber(redis.call('HGET', KEYS[1], 'v') or 0)
if newest ~= tonumber(ARGV[1]) then
  return newest
end
redis.call('HSET', KEYS[1], 'v', newest + 1, 'd', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
return false
