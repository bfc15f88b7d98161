package rdma

import "fmt"

// Piece is a contiguous part of the host's memory.
type Piece struct {
	At uint64
	N  int
}

// Memory is the memory that a queue pair may access.
type Memory struct {
	Bus interface {
		DMARead(at uint64, b []byte) error
		DMAWrite(at uint64, b []byte) error
	}
	// Translate resolves n bytes at an address of a region, by its key.
	Translate func(key uint32, at uint64, n int) ([]Piece, error)
}

// Gather reads n bytes of a message from offset off.
func (m Memory) Gather(list []Segment, off, n int) ([]byte, error) {
	b := make([]byte, 0, n)
	err := m.each(list, off, n, func(inline []byte, p Piece) error {
		if inline != nil {
			b = append(b, inline...)
			return nil
		}
		at := len(b)
		b = append(b, make([]byte, p.N)...)
		return m.Bus.DMARead(p.At, b[at:])
	})
	return b, err
}

// Scatter writes b to a message from offset off. It returns an ErrRoom if b is too long.
func (m Memory) Scatter(list []Segment, off int, b []byte) error {
	return m.each(list, off, len(b), func(inline []byte, p Piece) error {
		if inline != nil {
			return fmt.Errorf("inline data cannot be written to")
		}
		part := b[:p.N]
		b = b[p.N:]
		return m.Bus.DMAWrite(p.At, part)
	})
}

// each calls do for each piece of n bytes of a message from offset off.
func (m Memory) each(list []Segment, off, n int, do func(inline []byte, p Piece) error) error {
	for _, s := range list {
		if off >= s.N {
			off -= s.N
			continue
		}
		l := min(n, s.N-off)
		if l == 0 {
			break
		}
		if s.Inline != nil {
			if err := do(s.Inline[off:off+l], Piece{}); err != nil {
				return fmt.Errorf("inline data: %w", err)
			}
		} else {
			pieces, err := m.Translate(s.Key, s.At+uint64(off), l)
			for _, p := range pieces {
				if err == nil {
					err = do(nil, p)
				}
			}
			if err != nil {
				return fmt.Errorf("data segment of %d bytes at %#x, lkey %#x: %w", s.N, s.At, s.Key, err)
			}
		}
		n, off = n-l, 0
	}
	if n > 0 {
		return fmt.Errorf("%d bytes: %w", n, ErrRoom)
	}
	return nil
}

// Read reads n bytes at an address of a region. It returns ErrAccess if the key does not allow it.
func (m Memory) Read(key uint32, at uint64, n int) ([]byte, error) {
	pieces, err := m.Translate(key, at, n)
	if err != nil {
		return nil, ErrAccess
	}
	b := make([]byte, 0, n)
	for _, p := range pieces {
		from := len(b)
		b = append(b, make([]byte, p.N)...)
		if err := m.Bus.DMARead(p.At, b[from:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Write writes b to an address of a region. It returns ErrAccess if the key does not allow it.
func (m Memory) Write(key uint32, at uint64, b []byte) error {
	pieces, err := m.Translate(key, at, len(b))
	if err != nil {
		return ErrAccess
	}
	for _, p := range pieces {
		if err := m.Bus.DMAWrite(p.At, b[:p.N]); err != nil {
			return err
		}
		b = b[p.N:]
	}
	return nil
}
