-- Takes identities of which nothing is known any more out of the index, unless they were changed
-- since. KEYS: subjects. ARGV: identity and the event it stands there with, again and again.
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return 0
