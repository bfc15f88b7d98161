package appliance

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/replay"
)

// onlyFile returns a disk that boots the single file, as an existing EFI system partition does.
func onlyFile(t *testing.T, dir, config string) string {
	t.Helper()
	d := disk(t, dir+"/rebound.img", nil)
	mtool(t, d, "mdel", "::/EFI/Linux/"+ukis(t, d)[0])
	return disk(t, d, map[string]string{"/EFI/BOOT/BOOTX64.EFI": string(must.Get(os.ReadFile(dir + "/rebound.efi"))(t)),
		"/rebound.toml":       config,
		"/loader/loader.conf": ""})
}

// The single file boots without a boot loader, and each model of an Ethernet card answers.
func TestSingleFile(t *testing.T) {
	k := guests(t)
	dir := guestImage(t)
	for _, model := range etherCards {
		t.Run(model, func(t *testing.T) {
			d := onlyFile(t, dir, answeringOn(model))
			m := serve(t, k, model, 2)
			g := boot(t, k, machine{disk: d, sockets: m.sockets[:1], noIOMMU: model == "virtio"})
			answers(t, k, g, model, m.sockets[1])
			g.powerButton()
			fsck(t, d)
		})
	}
}

// EFA carries messages: clients find the queue pairs by TCP, on the management interface.
func TestEFA(t *testing.T) {
	k := guests(t)
	d := disk(t, guestImage(t)+"/rebound.img", map[string]string{"/rebound.toml": "[nic]\ndevice = \"" + card +
		"\"\n[respond]\nhandover = \"10.0.2.15:18515\"\n"})
	m := serve(t, k, "efa", 2)
	port := freePort(t)
	g := boot(t, k, machine{disk: d, usb: true, sockets: m.sockets[:1],
		netdev: fmt.Sprintf("user,id=m,hostfwd=tcp:127.0.0.1:%d-:18515,hostfwd=tcp:127.0.0.1:%d-:18516", port, port+1)})
	if line := g.says("rebound: ready driver=", 1); !strings.HasPrefix(line,
		"rebound: ready driver=efa device="+card+" ") {
		t.Errorf("%q", line)
	}
	g.says("management: http://", 1)
	for i, proto := range []string{"ud", "srd"} {
		out, err := exec.Command(k.bench, "run", "-target", "127.0.0.1", "-port", fmt.Sprint(port+i), "-driver", "efa",
			"-iface", "vfio-user:"+m.sockets[1], "-proto", proto, "-closed",
			"-count", "200", "-timeout", "60s", "-warmup", "0s", "-self-test", "0s", "-out",
			t.TempDir()).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("lost 0")) {
			t.Errorf("bench -proto %s: %v\n%s", proto, err, out)
		}
	}
	g.powerButton()
	fsck(t, d)
}

// iPXE loads the file over HTTP by the script that the build writes, which names the configuration's URL, too.
func TestIPXE(t *testing.T) {
	k := guests(t)
	dir := guestImage(t)
	files := http.NewServeMux()
	files.Handle("/", http.FileServer(http.Dir(dir)))
	files.HandleFunc("/rebound.toml", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(answering(""))) })
	s := httptest.NewServer(files)
	defer s.Close()
	base := strings.Replace(s.URL, "127.0.0.1", "10.0.2.2", 1)
	d := disk(t, dir+"/rebound.img", map[string]string{"/EFI/BOOT/BOOTX64.EFI": string(
		must.Get(os.ReadFile(k.ipxe))(t)), "/rebound.toml": "", "/loader/loader.conf": "",
		"/autoexec.ipxe": fmt.Sprintf(
			"#!ipxe\ndhcp\nset rebound rebound.config=%s/rebound.toml\nchain %s/rebound.ipxe\n", base, base)})
	// iPXE's driver starts the card, too, and does what the datasheet forbids and cards tolerate.
	m := serveOn(t, k, "ixgbe", 2, "pair", "-strict=refused")
	g := boot(t, k, machine{disk: d, sockets: m.sockets[:1]})
	g.says("rebound: ready driver=", 1)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	g.powerButton()
}

// Mode probe writes files of each stage to the stick. Each creates a model again.
func TestProbe(t *testing.T) {
	k := guests(t)
	for _, model := range []string{"ixgbe", "mlx5", "mlx4", "ena", "efa"} {
		t.Run(model, func(t *testing.T) {
			d := disk(t, guestImage(t)+"/rebound.img", map[string]string{
				"/rebound.toml": "[appliance]\nmode = \"probe\"\n[nic]\ndevice = \"" + card + "\"\n"})
			m := serve(t, k, model, 2)
			g := boot(t, k, machine{disk: d, usb: true, sockets: m.sockets[:1]})
			if line := g.says("done: ", 1); !strings.Contains(line, "1 cards probed, 0 with errors") {
				t.Errorf("%q", line)
			}
			g.powerButton()
			fsck(t, d)
			n := 0
			for _, name := range names(t, d, "/reports") {
				if strings.HasSuffix(name, ".tar.zst") {
					n++
					file := filepath.Join(t.TempDir(), name)
					mtool(t, d, "mcopy", "::/reports/"+name, file)
					must.Get(replay.Model(must.Get(evidence.Read(file))(t)))(t)
				}
			}
			if n != 3 {
				t.Errorf("%d probe files on the stick, not one of each stage", n)
			}
		})
	}
}

// Mode watch probes the targets of watch.toml, here QEMU's router, and the appliance's page has the metrics.
func TestWatch(t *testing.T) {
	k := guests(t)
	d := disk(t, guestImage(t)+"/rebound.img", map[string]string{"/rebound.toml": "[appliance]\nmode = \"watch\"\n",
		"/watch.toml": "[targets]\nlist = [\"10.0.2.2\"]\n"})
	g := boot(t, k, machine{disk: d, usb: true})
	g.until("rebound_target_up 1 on the page", func() bool {
		page, err := g.get("/metrics")
		for line := range strings.Lines(page) {
			if err == nil && strings.HasPrefix(line, "rebound_target_up{") && strings.HasSuffix(line, " 1\n") {
				return true
			}
		}
		return false
	})
	if s := g.status(); s.State != "watching" || s.Restarts != 0 {
		t.Errorf("%+v", s)
	}
	g.powerButton()
	fsck(t, d)
}

// The user data of clouds whose services want a token or a header, and give nothing without it.
func TestUserData(t *testing.T) {
	k := guests(t)
	dir := guestImage(t)
	side := newSide(t)
	address(t, managementTap, "169.254.169.254/32")
	address(t, managementTap, "10.77.0.1/24")
	lease(t, managementTap, "")
	serveHTTP(t, "169.254.169.254:80", userData(answering("")))
	for _, cloud := range []string{"ec2", "gce", "azure"} {
		// Not a subtest, which would be on another thread.
		m := serve(t, k, "ixgbe", 2)
		d := disk(t, dir+"/rebound.img", map[string]string{"/rebound.toml": ""})
		g := boot(t, k, machine{disk: d, sockets: m.sockets[:1], netdev: side.netdev(),
			more: extra("rebound.config=" + cloud)})
		g.host, g.dial = "10.77.0.2:9469", side.dial
		g.says("rebound: ready driver=", 1)
		if s := g.status(); s.Configuration != cloud || s.State != "answering" {
			t.Errorf("%+v", s)
		}
		measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
		g.powerButton()
	}
}

// userData is the service of three providers in one: each part refuses what the provider's does.
func userData(text string) http.Handler {
	pages := http.NewServeMux()
	need := func(w http.ResponseWriter, r *http.Request, name, value, body string) {
		if r.Header.Get(name) != value {
			http.Error(w, name+" is missing", http.StatusUnauthorized)
			return
		}
		w.Write([]byte(body))
	}
	pages.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, r *http.Request) {
		need(w, r, "X-aws-ec2-metadata-token-ttl-seconds", "60", "a token")
	})
	pages.HandleFunc("GET /latest/user-data", func(w http.ResponseWriter,
		r *http.Request) {
		need(w, r, "X-aws-ec2-metadata-token", "a token", text)
	})
	pages.HandleFunc("GET /computeMetadata/v1/instance/attributes/user-data",
		func(w http.ResponseWriter, r *http.Request) {
			need(w, r, "Metadata-Flavor", "Google", text)
		})
	pages.HandleFunc("GET /metadata/instance/compute/userData", func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("api-version") != "2021-01-01" || q.Get("format") != "text" {
			http.Error(w, r.URL.RawQuery, http.StatusBadRequest)
			return
		}
		need(w, r, "Metadata", "true", base64.StdEncoding.EncodeToString([]byte(text)))
	})
	return pages
}

// The firmware itself loads the file over HTTP, from the URL that DHCP gives. Nothing else is on the machine, and the
// configuration comes from a URL.
func TestHTTPBoot(t *testing.T) {
	k := guests(t)
	dir := guestImage(t)
	side := newSide(t)
	address(t, managementTap, "10.77.0.1/24")
	lease(t, managementTap, "http://10.77.0.1/rebound.efi")
	files := http.NewServeMux()
	files.Handle("/", http.FileServerFS(os.DirFS(dir)))
	files.HandleFunc("/rebound.toml", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(answering(""))) })
	serveHTTP(t, "10.77.0.1:80", files)
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{sockets: m.sockets[:1], netdev: side.netdev(),
		more: append(extra("rebound.config=http://10.77.0.1/rebound.toml"),
			"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=no", "-fw_cfg",
			"name=opt/org.tianocore/IPv6PXESupport,string=no")})
	g.host, g.dial = "10.77.0.2:9469", side.dial
	g.says("rebound: ready driver=", 1)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	g.powerButton()
}
