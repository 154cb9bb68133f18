#!@BASH@ -p
# Stands in for every program that a launch script may call. Servers are written down and not started; wrappers pass
# on to what they wrap; everything else succeeds at once and says what such programs say.
prog=${0##*/}

record() {
    local at=/.calls/${EPOCHREALTIME//[.,]/}-$$ made
    @ENV@ -0 > "$at.env"
    printf '%s\0' "$prog" "$@" > "$at.tmp"
    @MV@ "$at.tmp" "$at.argv"
    made=(/.calls/*.argv)
    if (( ${#made[@]} >= $(< /.most) )); then
        kill -KILL -1
    fi
    exit 0
}

server_module() {
    case $1 in
        sglang.launch_server | sglang_router.launch_router | sglang.launch_router | vllm.entrypoints.*) return 0 ;;
    esac
    return 1
}

runs_something() {
    case $1 in
        vllm | sglang | python | python3 | python3.* | bash | sh | env | docker | podman | nerdctl) return 0 ;;
        numactl | taskset | nohup | setsid | stdbuf | nice | ionice | chrt | systemd-run | srun | sudo | uv | conda) return 0 ;;
        mamba | micromamba | timeout | unbuffer | nsys | mpirun | apptainer | singularity | chroot | runuser | gosu) return 0 ;;
        tini | dumb-init | prlimit | systemd-inhibit | setpriv | poetry | pixi | time) return 0 ;;
    esac
    return 1
}

wrap() {
    local skip=0
    while (( $# )); do
        if (( skip )); then
            skip=0
            shift
            continue
        fi
        case $1 in
            --setenv=*=* | --env=*=*) export "${1#*=}" ;;
            -E | --setenv | --env) [[ ${2-} == *=* ]] && export "$2" && skip=1 ;;
            -n | -N | -J | -S | -dmS | -u | -g | -m | -C | -i | -P | -c | --name | --user | --unit | --job-name) skip=1 ;;
            -*) ;;
            [A-Za-z_]*=*) export "$1" ;;
            *)
                if runs_something "${1##*/}"; then
                    if [[ $1 == */* && -x $1 ]]; then exec "$@"; fi
                    local name=${1##*/}
                    shift
                    exec "$name" "$@"
                fi
                ;;
        esac
        shift
    done
    exit 0
}

terminal() {
    local verb=${1-} text= skip=0
    shift
    case $verb in
        new-session | new | new-window | neww | split-window | splitw | respawn-pane)
            while (( $# )); do
                case $1 in
                    -s | -n | -c | -t | -x | -y | -F | -e) skip=1 ;;
                    -*) ;;
                    *)
                        if (( $# == 1 )); then exec bash -c "$1"; fi
                        exec "$@"
                        ;;
                esac
                shift $((1 + skip))
                skip=0
            done
            ;;
        send-keys | send)
            while (( $# )); do
                case $1 in
                    -t) shift ;;
                    -*) ;;
                    C-m | Enter | KPEnter) break ;;
                    *) text+=$1 ;;
                esac
                shift
            done
            [[ $text == C-c ]] || exec bash -c "$text"
            ;;
        has-session | has) exit 1 ;;
    esac
    exit 0
}

case $prog in
    vllm | sglang | ssh) record "$@" ;;
    python | python3 | python3.* | pypy*)
        words=("$@")
        i=0
        while (( i < ${#words[@]} )); do
            case ${words[i]} in
                -m)
                    server_module "${words[i + 1]-}" && record "$@"
                    exit 0
                    ;;
                -W | -X) i=$((i + 2)) ;;
                -c*) exit 0 ;;
                -?*) i=$((i + 1)) ;;
                *)
                    case ${words[i]##*/} in
                        launch_server.py | api_server.py) record "$@" ;;
                        vllm | sglang) [[ ${words[i + 1]-} == serve ]] && record "$@" ;;
                    esac
                    exit 0
                    ;;
            esac
        done
        exit 0
        ;;
    docker | podman | nerdctl)
        case "${1-} ${2-}" in
            "run "* | "exec "* | "container run" | "container exec") record "$@" ;;
            "compose "*) [[ " $* " == *" up "* || $* == *" up" ]] && record "$@" ;;
            "inspect "* | "container inspect") exit 1 ;;
        esac
        ;;
    tmux | byobu) terminal "$@" ;;
    screen | numactl | taskset | nohup | setsid | stdbuf | nice | ionice | chrt | systemd-run | srun | sudo | uv | conda) wrap "$@" ;;
    mamba | micromamba | timeout | unbuffer | nsys | mpirun | apptainer | singularity | chroot | runuser | gosu) wrap "$@" ;;
    tini | dumb-init | prlimit | systemd-inhibit | setpriv | poetry | pixi | time) wrap "$@" ;;
    sleep) read -r -t 0.03 <> <(:) ;;
    date) [[ $* == *%s* && $* != *%S* ]] && echo 1735689600 || echo 20250101-000000 ;;
    nproc) echo 64 ;;
    hostname) [[ ${1-} == -[iI] ]] && echo 10.0.0.5 || echo node01 ;;
    curl) [[ $* == *http_code* ]] && printf 200 ;;
    pgrep | pidof | lsof | fuser) exit 1 ;;
    nvidia-smi)
        case $* in
            *-L*) for i in 0 1 2 3 4 5 6 7; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done ;;
            *memory.total*) for i in 0 1 2 3 4 5 6 7; do echo 143771; done ;;
            *) echo 0 ;;
        esac
        ;;
esac
exit 0
