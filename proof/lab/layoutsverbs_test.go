package lab

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
)

var verbsHeaders = []string{"rdma_user_ioctl_cmds.h", "ib_user_ioctl_cmds.h", "ib_user_ioctl_verbs.h",
	"ib_user_verbs.h", "efa-abi.h",
	"mlx4-abi.h", "mlx5-abi.h", "mlx5_user_ioctl_cmds.h", "mlx5_user_ioctl_verbs.h"}

// verbsStructs are all structures of package abi, by the kernel's names.
var verbsStructs = map[string]any{
	"ib_uverbs_ioctl_hdr": abi.IoctlHdr{}, "ib_uverbs_attr": abi.Attr{}, "ib_uverbs_async_event_desc": abi.AsyncEventDesc{},
	"ib_uverbs_alloc_pd": abi.AllocPD{}, "ib_uverbs_alloc_pd_resp": abi.AllocPDResp{}, "ib_uverbs_reg_mr": abi.RegMR{}, "ib_uverbs_reg_mr_resp": abi.RegMRResp{},
	"ib_uverbs_dereg_mr": abi.DeregMR{}, "ib_uverbs_create_qp": abi.CreateQP{}, "ib_uverbs_create_qp_resp": abi.CreateQPResp{}, "ib_uverbs_qp_dest": abi.QPDest{},
	"ib_uverbs_modify_qp": abi.ModifyQP{}, "ib_uverbs_global_route": abi.GlobalRoute{}, "ib_uverbs_ah_attr": abi.AHAttr{}, "ib_uverbs_create_ah": abi.CreateAH{},
	"ib_uverbs_create_ah_resp": abi.CreateAHResp{}, "ib_uverbs_destroy_ah": abi.DestroyAH{}, "ib_uverbs_ex_query_device": abi.ExQueryDevice{},
	"ib_uverbs_query_device_resp": abi.QueryDeviceResp{}, "ib_uverbs_ex_query_device_resp": abi.ExQueryDeviceResp{}, "ib_uverbs_query_port": abi.QueryPort{},
	"ib_uverbs_query_port_resp": abi.QueryPortResp{}, "ib_uverbs_create_flow": abi.CreateFlow{}, "ib_uverbs_flow_attr": abi.FlowAttr{},
	"ib_uverbs_create_flow_resp": abi.CreateFlowResp{}, "ib_uverbs_flow_eth_filter": abi.FlowEthFilter{}, "ib_uverbs_flow_spec_eth": abi.FlowSpecEth{},
	"ib_uverbs_flow_ipv4_filter": abi.FlowIPv4Filter{}, "ib_uverbs_flow_spec_ipv4": abi.FlowSpecIPv4{}, "ib_uverbs_flow_tcp_udp_filter": abi.FlowTCPUDPFilter{},
	"ib_uverbs_flow_spec_tcp_udp": abi.FlowSpecTCPUDP{},
	"mlx4_ib_alloc_ucontext_resp": abi.MLX4IBAllocUcontextResp{}, "mlx4_ib_alloc_ucontext_resp_v3": abi.MLX4IBAllocUcontextRespV3{}, "mlx4_ib_alloc_pd_resp": abi.MLX4IBAllocPDResp{}, "mlx4_ib_create_cq": abi.MLX4IBCreateCQ{},
	"mlx4_ib_create_cq_resp": abi.MLX4IBCreateCQResp{}, "mlx4_ib_create_qp": abi.MLX4IBCreateQP{},
	"efa_ibv_alloc_ucontext_cmd": abi.EFAAllocUcontextCmd{}, "efa_ibv_alloc_ucontext_resp": abi.EFAAllocUcontextResp{}, "efa_ibv_alloc_pd_resp": abi.EFAAllocPDResp{},
	"efa_ibv_create_cq": abi.EFACreateCQ{}, "efa_ibv_create_cq_resp": abi.EFACreateCQResp{}, "efa_ibv_create_qp": abi.EFACreateQP{},
	"efa_ibv_create_qp_resp": abi.EFACreateQPResp{}, "efa_ibv_create_ah_resp": abi.EFACreateAHResp{}, "efa_ibv_ex_query_device_resp": abi.EFAExQueryDeviceResp{},
	"mlx5_ib_alloc_ucontext_req_v2": abi.MLX5AllocUcontextReqV2{}, "mlx5_ib_alloc_ucontext_resp": abi.MLX5AllocUcontextResp{}, "mlx5_ib_alloc_pd_resp": abi.MLX5AllocPDResp{},
	"mlx5_ib_create_cq": abi.MLX5CreateCQ{}, "mlx5_ib_create_cq_resp": abi.MLX5CreateCQResp{}, "mlx5_ib_create_qp": abi.MLX5CreateQP{},
	"ib_uverbs_query_qp": abi.QueryQP{}, "ib_uverbs_query_qp_resp": abi.QueryQPResp{},
}

// plainName is a name without underscores, in lower case.
func plainName(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }

// TestLayoutsVerbs compares every structure and number of package abi with the kernel's headers.
func TestLayoutsVerbs(t *testing.T) {
	text := headers(t, "Linux (include/uapi/rdma)", verbsHeaders...)
	theirs, fields := cStructs(text), 0
	for name, ours := range verbsStructs {
		there := map[string]span{}
		for field, at := range theirs[name] {
			there[plainName(field)] = at
		}
		if len(there) == 0 {
			t.Errorf("the headers have no struct %s", name)
		}
		s := reflect.TypeOf(ours)
		for i := range s.NumField() {
			f := s.Field(i)
			want := span{8 * int(f.Offset), 8 * int(f.Type.Size())}
			if got, ok := there[plainName(f.Name)]; !ok || got != want {
				t.Errorf("%s.%s is bytes %d to %d, there %d to %d", name, f.Name, want.off/8, (want.off+want.width)/8,
					got.off/8, (got.off+got.width)/8)
			} else {
				fields++
			}
		}
	}
	values := cEnums(text)
	byPlain := map[string]int64{}
	for name, v := range values {
		byPlain[plainName(name)] = v
	}
	structs, numbers := 0, 0
	each(t, "../../nic/bus/verbs/abi", func(n ast.Node) {
		switch n := n.(type) {
		case *ast.TypeSpec:
			structs++
		case *ast.ValueSpec:
			for i, id := range n.Names {
				ours, err := types.Eval(token.NewFileSet(), nil, token.NoPos, types.ExprString(n.Values[i]))
				if err != nil {
					t.Errorf("%s: %v", id.Name, err)
					continue
				}
				got, _ := constant.Int64Val(ours.Value)
				found := id.Name == "VerbsIoctl" && got == 3<<30|24<<16|values["RDMA_IOCTL_MAGIC"]<<8|1
				for _, prefix := range []string{"uverbs", "ibuverbs", "ibuserverbs", "rdma", "mlx5ib", ""} {
					name := plainName(id.Name)
					if prefix == "mlx5ib" {
						name = strings.TrimPrefix(name, "mlx5")
					}
					if v, ok := byPlain[prefix+name]; ok && v != got {
						t.Errorf("%s is %#x, there %#x", id.Name, got, v)
					} else if ok {
						found = true
						break
					}
				}
				if numbers++; !found {
					t.Errorf("the headers do not have %s", id.Name)
				}
			}
		}
	})
	if structs != len(verbsStructs) {
		t.Errorf("%d structures were compared, package abi has %d", len(verbsStructs), structs)
	}
	t.Logf("%d fields and %d numbers agree", fields, numbers)
}

var (
	cComment    = regexp.MustCompile(`(?s)/\*.*?\*/`)
	cEnum       = regexp.MustCompile(`(?s)\benum\s*\w*\s*\{(.*?)\}`)
	cDefine     = regexp.MustCompile(`(?m)^#define\s+(\w+)\s+(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\s*$`)
	cSuffix     = regexp.MustCompile(`\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b`)
	cCast       = regexp.MustCompile(`\(__u\d+\)`)
	cIdentifier = regexp.MustCompile(`\b[A-Za-z_]\w*\b`)
)

// cEnums parses the values of a header's enumerations and numeric macros.
func cEnums(text string) map[string]int64 {
	all := map[string]int64{}
	text = cComment.ReplaceAllString(text, " ")
	for _, m := range cDefine.FindAllStringSubmatch(text, -1) {
		var v int64
		fmt.Sscanf(m[2], "%v", &v)
		all[m[1]] = v
	}
	for _, m := range cEnum.FindAllStringSubmatch(text, -1) {
		next := int64(0)
		for _, one := range strings.Split(m[1], ",") {
			name, value, given := strings.Cut(one, "=")
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			if given {
				value = cCast.ReplaceAllString(value, "")
				value = cSuffix.ReplaceAllString(value, "$1")
				value = cIdentifier.ReplaceAllStringFunc(value, func(id string) string {
					if v, ok := all[id]; ok {
						return fmt.Sprint(v)
					}
					return id
				})
				tv, err := types.Eval(token.NewFileSet(), nil, token.NoPos, strings.TrimSpace(value))
				if err != nil || tv.Value == nil {
					continue // refers to a name that is defined elsewhere
				}
				next, _ = constant.Int64Val(constant.ToInt(tv.Value))
			}
			all[name] = next
			next++
		}
	}
	return all
}
