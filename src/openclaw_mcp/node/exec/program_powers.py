"""What programs can do: start others, act as another user, reach other machines, write files, read them. Pure.

The lists hold the names we know; a program that is not on them may do any of it. So nothing is allowed because a name
is missing here, except where a person wrote a rule for a folder of their own (`may_match_wildcard`).
"""

import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Final

from .shell_reader import word_set

LocateProgram = Callable[[str], str | None]
"""A program as written to the absolute path of the file that would run; None when there is none."""

MULTI_CALL: Final = word_set("""
    busybox toybox coreutils uutils git kmod systemctl snap lvm rustup mtools vim vim.basic vim.tiny nvim sudo xz
    unzip perl ccache distcc
""")
"""Programs that do something else when they are called by another name, as through a link."""

SHELLS: Final = word_set("""
    sh bash rbash dash ash hush ksh rksh mksh lksh oksh loksh pdksh posh yash zsh rzsh fish csh tcsh rc es elvish nu
    xonsh osh ysh pwsh powershell
""")
"""Programs that run a text of commands."""

LANGUAGES: Final = word_set("""
    python pypy ipython bpython perl ruby irb erb jruby node nodejs deno bun php hhvm lua luajit texlua tclsh wish
    expect guile racket gsi csi chicken sbcl clisp ecl ccl ghci runghc runhaskell stack cabal ocaml ocamlrun utop
    scala kotlin kotlinc groovy swift r rscript littler octave octave-cli matlab julia gnuplot maxima erl escript
    elixir iex mix clojure clj bb lein crystal nim dart raku perl6 jshell java javaw jrunscript jdb mono dotnet pwsh
    powershell osascript cscript wscript qjs d8 rhino zx tsx ts-node janet fennel gforth forth rexx regina yabasic
    bwbasic swipl gprolog m4 ghostscript gs gsnd gdb gdbserver lldb rr tex latex pdftex pdflatex lualatex xelatex
    luatex etex groff troff nroff eqn pic pod2man
""")
"""Programs that run the file they are given."""

DATABASES: Final = word_set("""
    sqlite sqlite3 psql mysql mariadb mongosh mongo cqlsh sqlplus isql duckdb litecli pgcli mycli usql
""")
"""Clients of databases; their commands can start other programs."""

INTERPRETERS: Final = (
    LANGUAGES
    | DATABASES
    | word_set("""
    awk gawk mawk nawk original-awk bwk sed ssed ed red dc ex vi vim vimdiff view rvi rvim rview gvim gview nvim
    elvis vis kak hx helix emacs emacsclient mg jmacs joe jstar nano rnano pico micro mcedit mc ne editor
    sensible-editor zile redis-cli
""")
)
"""Programs that run a script or a language of their own, which can start others."""

LAUNCHERS: Final = (
    word_set("""
    env xargs find fd fdfind nohup nice ionice timeout stdbuf time gtime command exec builtin eval source . trap
    coproc setsid setarch linux32 linux64 i386 x86_64 personality prlimit taskset chrt numactl cgexec cgrun flock
    lockf watch entr inotifywait fswatch incrond watchexec nodemon parallel sem chronic ifne vidir vipe run-parts
    runparts start-stop-daemon daemonize daemon supervise supervisord runsv runsvdir chpst softlimit setuidgid
    envdir envuidgid pgrphack s6-svscan s6-supervise execlineb tini dumb-init catatonit gosu su-exec setpriv capsh
    unshare nsenter chroot fakechroot proot schroot debootstrap pbuilder mock systemd-run systemd-nspawn systemctl
    systemd-inhibit systemd-cat machinectl loginctl busctl dbus-send dbus-run-session dbus-launch gdbus qdbus
    firejail bwrap flatpak snap fakeroot pseudo eatmydata faketime catchsegv sprof ld.so strace ltrace perf valgrind
    uftrace bpftrace bpftool trace-cmd sysdig dtrace dtruss heaptrack rlwrap socat nc ncat netcat nmap tcpdump
    tshark dumpcap wireshark ngrep pppd openvpn wpa_cli dhclient udhcpc screen tmux dtach abduco reptyr byobu script
    scriptreplay scriptlive unbuffer ttyrec asciinema xterm uxterm rxvt urxvt gnome-terminal konsole xfce4-terminal
    alacritty kitty foot wezterm terminator x-terminal-emulator open xdg-open gio gnome-open kde-open exo-open see
    run-mailcap edit compose print sensible-browser sensible-pager www-browser x-www-browser xvfb-run xinit startx
    sshpass ssh slogin autossh mosh pssh pdsh clush dsh rsh rlogin rexec telnet ssh-agent ssh-add ssh-copy-id scp
    sftp lftp ftp ncftp rsync rclone unison borg restic duplicity rdiff-backup at batch cron crond crontab anacron
    atd fcron service initctl rc-service rc-update openrc launchctl init telinit make gmake bmake pmake remake ninja
    samu cmake ctest cpack meson muon bazel bazelisk buck buck2 pants gradle gradlew mvn mvnw ant sbt mill rake just
    task go-task tox nox invoke inv fab pytest py.test poetry pdm hatch flit pipenv conda mamba micromamba bundle
    bundler gem composer npm npx pnpm pnpx yarn corepack nvm fnm volta pip pipx uv uvx easy_install cargo rustc
    rustup rustdoc go gccgo tsc esbuild webpack vite gulp grunt nuget msbuild xbuild xcodebuild xcrun gcc g++ cc c++
    c89 c99 cpp clang clang++ clang-cl icc icpc tcc pcc gfortran gnat gnatmake gdc ldc2 dmd ghc javac kotlinc ld
    ld.gold ld.bfd ld.lld lld gold collect2 as ar ranlib nm objdump objcopy strip libtool libtoolize autoconf
    automake autoreconf aclocal configure config.status cscope ctags etags bison flex yacc lex gcov ccache distcc
    icecc sccache scan-build bear git git-lfs hg svn svnadmin bzr cvs fossil darcs jj tig lazygit gh glab repo quilt
    docker dockerd podman nerdctl buildah skopeo kubectl helm k9s oc crictl ctr runc crun lxc lxc-execute lxd incus
    kind minikube vagrant packer terraform tofu terragrunt pulumi ansible salt puppet chef cfengine nix nix-shell
    nix-build guix qemu kvm virsh virt-install wine wine64 box64 box86 dosbox dosemu apt apt-get aptitude apt-key
    dpkg dpkg-reconfigure debconf rpm rpmbuild dnf yum zypper pacman yay paru makepkg emerge ebuild apk opkg
    xbps-install brew port pkg pkg_add update-alternatives alternatives update-rc.d invoke-rc.d needrestart debuild
    sudo sudoedit su doas pkexec runuser run0 sg newgrp login agetty getty kdesu gksu gksudo calife super sux tar
    gtar bsdtar star cpio pax zip zipnote unzip 7z 7za 7zr rar unrar split csplit sort install ginstall man mandb
    apropos whatis info pinfo less lessecho lesspipe lessfile more most pg bat delta pager zless zmore bzless xzless
    zgrep bzgrep xzgrep zstdgrep zdiff zcmp zforce znew gzexe rg ag ack ugrep sdiff diff3 colordiff vimdiff
    git-difftool meld kdiff3 patch w3m lynx links elinks links2 browsh mutt neomutt alpine pine mail mailx nail
    s-nail sendmail exim postfix procmail maildrop formail fetchmail getmail msmtp slrn tin irssi weechat chromium
    chromium-browser google-chrome firefox brave electron code codium openssl gpg gpg2 gpgv gpgsm gpg-agent gpgconf
    gpg-connect-agent pass age pinentry logrotate rsyslogd syslog-ng ip tc ifup ifdown nmcli netplan iptables-apply
    udevadm modprobe insmod depmod dracut mkinitramfs update-initramfs update-grub ldconfig ldd iconvconfig
    locale-gen localedef ffmpeg ffplay mpv mplayer vlc cvlc gst-launch sox play rec convert magick mogrify montage
    identify inkscape gimp blender libreoffice soffice pandoc dot neato texi2dvi texi2pdf latexmk a2ps enscript lp
    lpr cups tee xmlto fop dialog whiptail zenity kdialog fzf sk peco dmenu rofi ranger nnn lf vifm ncdu slsh
    pydoc pygmentize hyperfine gprofng gprof gcovr coverage openclaw openclaw-mcp remoteclaw-mcp-server claude codex
    gemini opencode
    aider top trickle torsocks torify proxychains proxychains4 tsocks cset schedtool uudecode shar unshar mount
    umount mount.fuse sshfs fusermount guestfish guestmount xdotool wmctrl xbindkeys sxhkd i3-msg swaymsg hyprctl
    wget wget2 aria2c youtube-dl yt-dlp journalctl coredumpctl localectl hostnamectl timedatectl bootctl networkctl
    resolvectl homectl dmesg vipw vigr visudo mimeopen jar protoc nginx httpd apache2 apachectl lighttpd caddy uwsgi
    gunicorn uvicorn flask django-admin celery jupyter sphinx-build mkdocs pre-commit exiftool rename prename calc
    sshd dropbear dbclient stunnel stunnel4 inetd xinetd tcpserver tcpsvd udpsvd cu minicom picocom kermit rc es nu
    mypy pylint zcat bzcat xzcat cron-apt dh debhelper lintian pkgutil installer softwareupdate defaults fuser
    busybox toybox coreutils uutils resolvconf openrc-run chkconfig man2html xdg-email
    msgexec msgfilter runcon choom uclampset coresched pipesz memusage sotruss prove cpan perldoc pg_virtualenv
    pg_ctl initdb gdbtui pdb lli llc opt not logsave pasuspender padsp rtcwake jexec gcore rpcgen direnv mise rtx
    pyenv rbenv nodenv jenv asdf sdk foreman honcho overmind hivemind pm2 forever supervisorctl circusd monit jest
    mocha vitest ava nyc c8 karma cypress playwright eslint prettier rollup parcel swc babel scons zig waf b2 bjam
    premake5 xmake conan vcpkg spack qmake swiftc odin nimble rebar3 opam dune esy elm spago raco gosh scheme
    pee mispipe lckdo zrun xe rush dotenv envchain aws-vault chamber doppler op vault sops teller infisical
    dockerize concurrently cross-env turbo lerna nx act earthly dagger skaffold tilt bats shellspec keychain flake8
    bandit distrobox toolbox lxc-attach conmon umoci sshuttle wg-quick certbot acme.sh mvnd wsl cmd caffeinate
    newlisp picolisp wolframscript sage gap gp bc rails rspec bunx phpunit pyinvoke rye pixi
""")
    | INTERPRETERS
    | SHELLS
)
"""Programs that can start others, by themselves or by an option of theirs."""

ARGUMENT_LAUNCHERS: Final = word_set("""
    env xargs nohup nice ionice timeout stdbuf time gtime command exec builtin eval coproc setsid setarch linux32
    linux64 i386 x86_64 personality prlimit taskset chrt numactl cgexec cgrun flock lockf watch entr watchexec
    nodemon parallel sem chronic ifne start-stop-daemon daemonize daemon chpst softlimit setuidgid envdir envuidgid
    pgrphack execlineb tini dumb-init catatonit gosu su-exec setpriv capsh unshare nsenter chroot fakechroot proot
    schroot systemd-run systemd-nspawn systemd-inhibit systemd-cat dbus-run-session dbus-launch firejail bwrap
    fakeroot pseudo eatmydata faketime catchsegv strace ltrace perf valgrind uftrace heaptrack rlwrap screen tmux
    dtach abduco script unbuffer ttyrec asciinema xterm uxterm rxvt urxvt gnome-terminal konsole xfce4-terminal
    alacritty kitty foot wezterm terminator x-terminal-emulator xvfb-run xinit startx sshpass ssh slogin autossh mosh
    pssh pdsh clush dsh rsh rexec ssh-agent sudo su doas pkexec runuser run0 sg kdesu gksu gksudo calife super sux
    hyperfine trickle torsocks torify proxychains proxychains4 tsocks cset schedtool runcon choom uclampset coresched
    memusage sotruss logsave pasuspender padsp rtcwake jexec lckdo zrun dotenv envchain aws-vault chamber doppler
    dockerize concurrently cross-env npx pnpx uvx bunx distrobox lxc-attach lxc-execute caffeinate box64 box86 rr
    gdbserver msgexec msgfilter pee mispipe keychain
""")
"""Programs that start the command among their arguments."""
_ARGUMENT_LAUNCHER_NAME: Final = re.compile(
    r"ld\.so.*|ld-.*|.*-run|.*-exec|qemu.*|wine.*|(?:valgrind|fakeroot)[-.]\w+|s6-.*"
)
_RUN_VERB_PROGRAMS: Final = word_set("""
    docker docker-compose podman podman-compose nerdctl kubectl oc crictl ctr runc crun lxc incus flatpak snap uv
    poetry pdm pipenv hatch rye pixi conda mamba micromamba mise rtx asdf pyenv rbenv coverage nix
""")
"""Programs that start the command after the argument `run`; to others that is a script's name. After `exec` all do."""
_COMMAND_TEXT_OPTION: Final = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")

BUILDERS: Final = word_set("""
    gulp grunt lein waf b2 bjam premake5 xmake conan vcpkg spack qmake swift swiftc nimble rebar3 opam dune esy spago
    raco zig rails phpunit invoke inv fab pyinvoke foreman honcho hivemind pm2 skaffold tilt earthly dagger act turbo
    lerna nx cypress playwright karma ava nyc c8 parcel swc babel tsc coverage celery gunicorn uvicorn uwsgi jupyter
    django-admin rye pixi helm pulumi packer mvnd mill buck buck2 pants muon cpack autoreconf configure elm makepkg
    rpmbuild debuild quilt direnv mise asdf bats shellspec prove bandit ruff
""")
"""Programs that run code of the current folder, besides those in the table of `implicit_files`."""

_LAUNCHER_NAME: Final = re.compile(
    r"[a-z.]*sh|(?:[bd]?ash|rbash|[lpm]?d?ksh|zsh|t?csh|fish|yash|posh)[-.\d][-\w.]*|"
    r"(?:python|pypy|ipython|perl|ruby|php|lua|tclsh|wish|guile|erl|java|jruby|node|mono|dotnet|emacs|vim|gvim)[-\w.+]*|"
    r"(?:git|ssh|gpg|docker|podman|kube|ansible|salt|puppet|systemd|apt|dpkg|rpm|dnf|yum|npm|pip|cargo|go|conda|nix|guix|qemu|lxc|"
    r"gdb|lldb|valgrind|perf|xvfb|dbus|s6|runit|cmake|ctest|gradle|mvn|bazel|meson|gst-launch|vim|terraform|update|xdg|lvm)-[-\w.+]*|"
    r"(?:[a-z0-9_]+-)+(?:gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|gfortran|ld|as|ar|nm|strip|objcopy|objdump|ranlib|gdb|awk|pkg-config)|"
    r"ld-[-\w.]*|ld[-.]?linux.*|ld-.*\.so.*|ld\.so.*|qemu.*|wine.*|.*-run|.*-exec|(?:valgrind|fakeroot)[-.]\w+|.*-shell|.*-askpass|.*(?:awk|perl|python)"
)
_VERSION: Final = re.compile(r"(?:[-.]?\d[\d.]*)(?:-(?:dbg|debug|config|wrapper|m|mu))?$")

USER_SWITCHERS: Final = word_set(
    "sudo sudoedit su doas pkexec runuser run0 sg newgrp login kdesu gksu gksudo super sux setpriv gosu su-exec chpst "
    "setuidgid machinectl systemd-run"
)
"""Programs that act as another user."""

NETWORK_PROGRAMS: Final = word_set("""
    ssh slogin autossh mosh pssh pdsh clush dsh rsh rlogin rexec telnet scp sftp lftp ftp ncftp tftp rsync rclone
    unison curl wget wget2 aria2c http https xh nc ncat netcat socat nmap openssl mail mailx sendmail msmtp mutt git
    hg svn docker podman kubectl helm ansible ansible-playbook npm pip cargo gem brew aws gcloud az gh glab
    terraform sshfs borg restic duplicity dig host nslookup psql mysql mongosh redis-cli youtube-dl yt-dlp w3m lynx
    links elinks telegram-cli irssi
""")
"""Programs that connect to other machines, and can send what they read there."""

WRITERS: Final = word_set("""
    rm rmdir unlink shred srm wipe cp mv ln link install ginstall dd truncate fallocate tee sponge touch mkdir
    mkfifo mknod mktemp chmod chown chgrp chattr setfacl setfattr setcap sort uniq split csplit sed awk gawk mawk
    xxd iconv patch ed tar gtar bsdtar cpio pax zip unzip 7z gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lz4 lzop
    compress uncompress curl wget wget2 aria2c rsync scp sftp git hg svn kill killall pkill skill renice shutdown
    reboot poweroff halt init telinit systemctl mount umount losetup swapon swapoff fdisk sfdisk gdisk sgdisk parted
    wipefs mkswap useradd userdel usermod groupadd groupdel passwd chpasswd chsh chfn crontab at hostname
    hostnamectl timedatectl hwclock ip ifconfig route iptables nft sysctl modprobe rmmod insmod ffmpeg convert
    openssl gpg sqlite3 psql mysql nano vi vim emacs yq jo xmllint xsltproc script nohup find dos2unix unix2dos
    docker podman kubectl helm apt apt-get dpkg snap flatpak brew pip npm cargo make openclaw openclaw-mcp rename
    prename mmv
""")
"""Programs that can write, remove or change something."""
_WRITER_NAME: Final = re.compile(r"mkfs.*|fsck.*|mke2fs|resize2fs|tune2fs|.*fs_repair|cryptsetup|lv\w+|vg\w+|pv\w+")

READERS: Final = word_set("""
    cat tac head tail less more most bat nl od hd hexdump xxd strings grep egrep fgrep zgrep rg ag ack ugrep cut
    paste join comm sort uniq wc du fold fmt pr expand unexpand column rev diff cmp sdiff diff3 colordiff file
    base64 base32 basenc md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum zcat bzcat xzcat
    zstdcat jq yq xmllint awk gawk mawk sed dd cp tar gtar zip shuf split csplit iconv look tsort ptx openssl gpg
    curl wget rsync scp git vi vim nano emacs find view man info nm objdump readelf ldd python sqlite3 ffmpeg
    convert hostname
""")
"""Programs that can print a file's content: any file this user may read, tokens among them."""

PROCESS_VIEWERS: Final = word_set("""
    ps pgrep pstree top htop btop atop iotop glances bashtop bpytop procs btm w pmap pidstat lsns systemd-cgls
    systemd-cgtop nethogs smem pargs peekfd
""")
"""Programs that print the arguments of other processes and, some, their whole environment."""

READ_ONLY_PROGRAMS: Final = word_set("""
    arch b2sum base32 base64 basename basenc cal cat cksum cmp column comm cut df dir dirname du echo egrep expand
    expr factor false fgrep fmt fold free grep groups head hexdump hd id join last locale logname ls lsblk lscpu
    lsmod md5sum ncal nl nproc numfmt od paste pidof pr printenv printf pwd readlink realpath rev seq
    sha1sum sha224sum sha256sum sha384sum sha512sum sleep stat strings sum tac tail test [ tr true tsort tty uname
    unexpand uptime users vdir vmstat wc which whereis who whoami yes
""")
"""Programs of the system that read and print and, with any options, start nothing and write nothing."""

_SYSTEM_PREFIXES: Final = ("/bin/", "/sbin/", "/usr/", "/lib", "/System/", "/Library/Apple/")
_LOCAL_PREFIX: Final = "/usr/local/"


def base_name(program: str) -> str:
    """The last part of a path."""
    return program[program.rfind("/") + 1 :] if os.sep == "/" else PurePath(program).name


def plain_name(program: str) -> str:
    """A program's name in lower case, without folder and ending: `/usr/bin/GREP.exe` is `grep`."""
    return base_name(program).lower().removesuffix(".exe")


def strip_version(name: str) -> str:
    """`gcc-12`, `python3.11`, `lua5.4` without their version."""
    return _VERSION.sub("", name) or name


def is_listed(name: str, programs: frozenset[str]) -> bool:
    return name in programs or strip_version(name) in programs


@lru_cache(maxsize=4096)
def can_start_programs(program: str) -> bool:
    """Whether a program of this name is known to be able to start others or to run a script."""
    name = plain_name(program)
    return (
        is_busybox_like(name)
        or is_listed(name, LAUNCHERS)
        or any(_LAUNCHER_NAME.fullmatch(each) for each in (name, strip_version(name)))
    )


def launch_argument_index(program: str, arguments: Sequence[str]) -> int:
    """The index of the first argument that may name a program to start; their number when none may.

    It errs on the safe side: which argument it is depends on each program's options.
    """
    name = plain_name(program)
    if not can_start_programs(name):
        return len(arguments)
    if is_listed(name, ARGUMENT_LAUNCHERS) or _ARGUMENT_LAUNCHER_NAME.fullmatch(name):
        return 0
    if is_listed(name, SHELLS):
        return next(
            (at + 1 for at, word in enumerate(arguments) if _COMMAND_TEXT_OPTION.fullmatch(word)), len(arguments)
        )
    verbs = ("run", "exec") if is_listed(name, _RUN_VERB_PROGRAMS) else ("exec",)
    return next((at + 1 for at, word in enumerate(arguments) if word in verbs), len(arguments))


def can_write(program: str) -> bool:
    name = plain_name(program)
    return is_listed(name, WRITERS) or _WRITER_NAME.fullmatch(name) is not None


def is_busybox_like(program: str) -> bool:
    """Whether it contains many programs: `busybox`, and `busybox.static` too."""
    return re.split(r"[.-]", base_name(program), maxsplit=1)[0] in ("busybox", "toybox", "coreutils")


def is_multi_call(program: str) -> bool:
    """Whether it does something else when it is called by another name."""
    return base_name(program) in MULTI_CALL or is_busybox_like(program)


def may_match_wildcard(program: str, locate: LocateProgram) -> bool:
    """Whether a rule with a wildcard for the program may cover this one.

    Among the system's own programs only those that only read; in other folders all that are not known to do more.
    """
    own, found = base_name(program), locate(program)
    real = base_name(found) if found else own
    acts_as = {own} if is_busybox_like(real) and own in READ_ONLY_PROGRAMS else {own, real}
    if any(can_start_programs(name) or can_write(name) or is_listed(name, PROCESS_VIEWERS) for name in acts_as):
        return False
    if found is None or (found.startswith(_SYSTEM_PREFIXES) and not found.startswith(_LOCAL_PREFIX)):
        # A link elsewhere may have any name: the name counts only for the file that the bare name means.
        return own in READ_ONLY_PROGRAMS and (own == real or locate(own) == found)
    return True
