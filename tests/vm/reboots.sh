# Runs inside the machine, once a boot: installs the services, with their directories on the fourth disk, and keeps them
# busy until the machine goes down. `how` names the kind of end: this script does `reboot`, the host does the others.
set -u
ip link set lo up 2>/dev/null
grep -qs localhost /etc/hosts || echo '127.0.0.1 localhost' >>/etc/hosts
mkdir -p /var/lib/meseta
mount -o noatime /dev/vdd /var/lib/meseta || { echo "WRONG the disk cannot be mounted" >/dev/console; exit 1; }
sed -n '/^```sh$/,/^```$/{/^```/!p}' systemd.md | grep -vE '^(systemctl (enable|status)|meseta )' >install.sh
sh -e install.sh
cat >>/etc/meseta/agent.toml <<T
resources = "cpus:8;mem:700;disk:400"
gc_delay = "5secs"
disk_watch_interval = "1secs"
T
systemctl enable --now meseta-master meseta-agent
how=$(cat how)
rest=; [ "$how" = last ] && rest=last
if [ "$how" = reboot ]; then
  # Waits until the machine is busy, then for the given time.
  (until grep -q 'WORDS [1-9][0-9]' /tmp/told 2>/dev/null; do sleep 0.5; done; sleep "$(cat seconds)"; systemctl reboot) &
fi
./reboots known /dev/vdc $rest 2>&1 | tee /tmp/told >/dev/console
systemctl status meseta-agent meseta-master --no-pager -l >/out/units.txt 2>&1
grep -q '^WRONG' /tmp/told && exit 1
grep -q 'a new task has run' /tmp/told
