package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MADSize is the length of every management datagram.
const MADSize = 256

// errMAD reports a datagram that is malformed or not the expected one.
var errMAD = errors.New("management datagram")

// Class is a management class.
type Class uint8

const (
	ClassSubnet Class = 0x01 // LID-routed subnet management
	ClassSA     Class = 0x03 // subnet administration

	ClassSubnetDirected Class = 0x81 // subnet management by directed routes
)

// Method is the operation on an attribute. A Get or Set is answered by a GetResp, a Delete by a DeleteResp.
type Method uint8

const (
	Get        Method = 0x01
	Set        Method = 0x02
	Delete     Method = 0x15
	GetResp    Method = 0x81
	DeleteResp Method = 0x95
)

// Attribute is the subject of a datagram.
type Attribute uint16

const (
	AttrNodeInfo       Attribute = 0x0011 // of subnet management
	AttrGUIDInfo       Attribute = 0x0014
	AttrPortInfo       Attribute = 0x0015
	AttrPKeyTable      Attribute = 0x0016
	AttrPathRecord     Attribute = 0x0035 // of subnet administration
	AttrMCMemberRecord Attribute = 0x0038
)

// header is the common header of a MAD (IBA vol. 1 §13.4.3).
type header struct {
	Class     Class
	Version   uint8 // of the class
	Method    Method
	Status    uint16
	TID       uint64 // transaction ID: chosen by the requester, repeated in the answer
	Attribute Attribute
	Modifier  uint32 // of the attribute
}

const (
	baseVersion = 1
	headerSize  = 24
)

func (h header) put(b []byte) {
	b[0], b[1], b[2], b[3] = baseVersion, uint8(h.Class), h.Version, uint8(h.Method)
	binary.BigEndian.PutUint16(b[4:], h.Status)
	binary.BigEndian.PutUint64(b[8:], h.TID)
	binary.BigEndian.PutUint16(b[16:], uint16(h.Attribute))
	binary.BigEndian.PutUint32(b[20:], h.Modifier)
}

// parseHeader reads the header of a datagram.
func parseHeader(b []byte) (header, error) {
	if len(b) < MADSize {
		return header{}, fmt.Errorf("%w of %d bytes, expected %d", errMAD, len(b), MADSize)
	}
	if b[0] != baseVersion {
		return header{}, fmt.Errorf("%w of base version %d, expected %d", errMAD, b[0], baseVersion)
	}
	return header{Class: Class(b[1]), Version: b[2], Method: Method(b[3]), Status: binary.BigEndian.Uint16(b[4:]),
		TID: binary.BigEndian.Uint64(b[8:]), Attribute: Attribute(binary.BigEndian.Uint16(b[16:])),
		Modifier: binary.BigEndian.Uint32(b[20:])}, nil
}

// answers returns an error unless b is a successful answer to the request with header h.
func (h header) answers(b []byte) error {
	got, err := parseHeader(b)
	if err != nil {
		return err
	}
	method := GetResp
	if h.Method == Delete {
		method = DeleteResp
	}
	switch {
	case got.Class != h.Class || got.Attribute != h.Attribute || got.Method != method || got.TID != h.TID:
		return fmt.Errorf("%w of class %#02x, method %#02x, attribute %#04x, TID %#x is not the answer to class %#02x, method %#02x, attribute %#04x, TID %#x",
			errMAD, uint8(got.Class), uint8(got.Method), uint16(got.Attribute), got.TID, uint8(h.Class),
			uint8(h.Method), uint16(h.Attribute), h.TID)
	case got.Status != 0:
		return &StatusError{got.Class, got.Attribute, got.Status}
	}
	return nil
}

// StatusError is an answer with an error status. It wraps errMAD.
type StatusError struct {
	Class     Class
	Attribute Attribute
	Status    uint16
}

// busy reports whether a retry may succeed.
func (e *StatusError) busy() bool { return e.Status&1 != 0 }

var statusNames = map[uint16]string{ // bits 4:2
	1: "the version of base or class is not supported", 2: "the method is not supported",
	3: "the method is not supported for the attribute",
	7: "a field of attribute or modifier is invalid",
}

var saStatusNames = map[uint16]string{ // bits 15:8, of subnet administration
	1: "no resources", 2: "the request is invalid", 3: "no records", 4: "too many records",
	5: "the requester's GID is invalid",
	6: "components are missing", 7: "the request is denied", 8: "the priority is to be suggested",
}

func (e *StatusError) Error() string {
	what := "unknown"
	switch common, own := e.Status>>2&7, e.Status>>8; {
	case e.busy():
		what = "busy, the request was dropped"
	case common != 0 && statusNames[common] != "":
		what = statusNames[common]
	case e.Class == ClassSA && saStatusNames[own] != "":
		what = saStatusNames[own]
	}
	return fmt.Sprintf("%v, attribute %#04x: status %#04x: %s", errMAD, uint16(e.Attribute), e.Status, what)
}

func (e *StatusError) Unwrap() error { return errMAD }
