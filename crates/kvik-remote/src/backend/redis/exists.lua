local prefix, names = ARGV[1] .. 'b:', ARGV[2]
local there = {}
for first = 1, #names, 49 do
  there[#there + 1] = redis.call('EXISTS', prefix .. names:sub(first, first + 48))
end
return table.concat(there)
