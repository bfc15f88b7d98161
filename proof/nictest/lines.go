package nictest

import (
	"fmt"
	"reflect"
	"sort"
	"strings"
	"testing"
	"unsafe"
)

const cacheLine = 64

// extent is a range of memory of one queue.
type extent struct {
	name  string
	queue int
	from  uintptr
	size  uintptr
}

// extents are the ranges of memory that a queue's loop writes for each frame: the structure, and the first cache line
// of everything that it points to. Fields named in registers point to a device, not memory.
func extents(queue int, q any, registers []string) (all []extent) {
	v := reflect.ValueOf(q).Elem()
	all = append(all, extent{v.Type().Name(), queue, v.UnsafeAddr(), v.Type().Size()})
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			f, name := v.Field(i), prefix+v.Type().Field(i).Name
			skip := false
			for _, r := range registers {
				skip = skip || name == r || strings.HasPrefix(name, r+".")
			}
			switch {
			case skip:
			case f.Kind() == reflect.Struct:
				walk(name+".", f)
			case f.Kind() == reflect.Array && f.Type().Elem().Kind() == reflect.Struct:
				for j := range f.Len() {
					walk(name+".", f.Index(j))
				}
			case f.Kind() == reflect.UnsafePointer || f.Kind() == reflect.Pointer || f.Kind() == reflect.Slice:
				if p := f.Pointer(); p != 0 {
					all = append(all, extent{name, queue, p, 1})
				}
			}
		}
	}
	walk("", v)
	return all
}

// Apart fails the test if two queues write to the same cache line, because it would bounce between their cores for
// every frame. queues are pointers to a driver's queues; registers names the fields that do not point to memory.
func Apart(t testing.TB, queues []any, registers ...string) {
	t.Helper()
	for _, problem := range shared(queues, registers) {
		t.Error(problem)
	}
}

func shared(queues []any, registers []string) (problems []string) {
	var all []extent
	for i, q := range queues {
		all = append(all, extents(i, q, registers)...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].from < all[j].from })
	last := map[uintptr]extent{} // by cache line
	for _, e := range all {
		for line := e.from / cacheLine; line <= (e.from+e.size-1)/cacheLine; line++ {
			if o, ok := last[line]; ok && o.queue != e.queue {
				problems = append(problems,
					fmt.Sprintf("%s of queue %d and %s of queue %d are in the cache line at %#x", o.name, o.queue,
						e.name, e.queue, line*cacheLine))
			}
			last[line] = e
		}
	}
	for i, q := range queues {
		// Heap objects have the size of their size class: if that is not a multiple of a cache line, neighbouring
		// objects share one.
		if size := reflect.TypeOf(q).Elem().Size(); size%cacheLine != 0 {
			problems = append(problems, fmt.Sprintf("queue %d has %d bytes, which is no multiple of %d", i, size,
				cacheLine))
			break
		}
	}
	return problems
}

// checkMostQueues: with as many queue pairs as the driver supports, up to 16, each answers some of the flows, and no
// two share a cache line.
func checkMostQueues(x *rig) {
	most := max(x.h.Most, x.h.Queues)
	if most <= 1 {
		x.Skip("the driver has one queue pair")
	}
	x.open(most)
	defer x.close()
	if x.h.Queue != nil {
		var queues []any
		for i := range most {
			queues = append(queues, x.h.Queue(x.dev, i))
		}
		Apart(x, queues, x.h.Registers...)
	}
	var responders []extent
	for i, r := range x.resp {
		responders = append(responders, extent{"Responder", i, uintptr(unsafe.Pointer(r)), unsafe.Sizeof(*r)})
	}
	for i, a := range responders {
		for _, b := range responders[:i] {
			if a.from/cacheLine <= (b.from+b.size-1)/cacheLine && b.from/cacheLine <= (a.from+a.size-1)/cacheLine {
				x.Errorf("the responders of queues %d and %d share a cache line", a.queue, b.queue)
			}
		}
	}
	x.spread(20, most/2)
}
