// The limit of rates, as fastpath/guard.go has it: a token bucket for each source, kept as the moment at which it will be full again.

// charge takes a reply from a bucket at the time now, in 1/16 ns.
inlined int charge(u64 *full, u64 now)
{
	u64 ahead = *full - now;
	if (ahead > rules.most) // full
		ahead = 0;
	if (ahead > rules.burst)
		return 0;
	*full = now + ahead + rules.cost;
	return 1;
}

// take_again decides where take did not find the source at home within its rate: it looks at the clock, and has the source settle. It is a
// global function, and so verified once for any hash, and not for each way to it.
global int take_again(u64 hash)
{
	u32 cpu = get_smp_processor_id();
	struct cpu_counts *c = map_lookup_elem(&cpus, &cpu);
	if (!c)
		return 0;
	if (!rules.stepped)
		c->now = ktime_get_ns();
	u64 now = c->now << 4, longest = 0;
	u64 home = hash >> 52, set = home - home % WAYS, to = SLOTS;
	if (c->places[home].source == hash)
		return charge(&c->places[home].full, now);
	for (u64 i = 0; i < WAYS; i++) {
		struct place *p = &c->places[set + i];
		u64 silence = now - p->full; // how long it has been full
		if (p->source == hash) {
			to = set + i;
			break;
		}
		if (p->source == 0) {
			to = set + i;
			longest = ~0ULL;
		} else if (-silence > rules.most && silence > longest &&
			   (silence > rules.idle || silence / PATIENCE > p->full - rules.cost - c->begun[set + i])) {
			to = set + i;
			longest = silence;
		}
	}
	if (to >= SLOTS)
		return charge(&c->shared[set / WAYS], now);
	struct place came = c->places[to];
	u64 begun = c->begun[to];
	if (came.source != hash) {
		came.source = hash;
		came.full = begun = now;
	}
	c->places[to] = c->places[home];
	c->begun[to] = c->begun[home];
	c->places[home] = came;
	c->begun[home] = begun;
	return charge(&c->places[home].full, now);
}

// take reports whether a source may have a reply, and counts it. It goes by this CPU's last look at the clock, a dozen frames ago or so,
// and looks again before it refuses: a look costs as much as half of the answer. A source that paused can so have what is answered
// between two looks beyond its burst.
inlined int take(const struct request *q, u64 hash)
{
	struct place *p = &q->cpu->places[hash >> 52];
	if (!rules.cost || likely(p->source == hash && charge(&p->full, q->cpu->now << 4)))
		return 1;
	return take_again(hash);
}

// repeated decides where a datagram equals too many before it, by an old look at the clock: it looks again.
global int repeated(u64 hash, u32 key)
{
	u32 cpu = get_smp_processor_id();
	struct cpu_counts *c = map_lookup_elem(&cpus, &cpu);
	if (!c)
		return 1;
	if (!rules.stepped)
		c->now = ktime_get_ns();
	struct repeat *e = &c->repeats[hash >> 52];
	if (c->now - e->began <= rules.window)
		return 1;
	e->began = c->now;
	e->key = key;
	e->count = 1;
	return 0;
}

// loops reports whether a datagram belongs to a loop, as fastpath's repeats.take, and counts it.
inlined int loops(const struct request *q, u64 hash, u32 key)
{
	struct repeat *e = &q->cpu->repeats[hash >> 52];
	if (q->cpu->now - e->began > rules.window) {
		e->began = q->cpu->now;
		e->key = key;
		e->count = 1;
	} else if (e->key == key) {
		if (unlikely(e->count >= rules.loop))
			return repeated(hash, key);
		e->count++;
	}
	return 0;
}

inlined u64 hash4(u32 a) { return a * 0x9e3779b97f4a7c15ULL; }
inlined u64 hash6(u64 hi, u64 lo) { return (hi * 0xbf58476d1ce4e5b9ULL ^ lo) * 0x9e3779b97f4a7c15ULL; }
