# Marks where commands begin and end (OSC 133), for recordings made by `ah agent record`; does nothing anywhere else.
# In ~/.zshrc:  eval "$(ah shell-init zsh)"
if [[ -o interactive && -n ${AH_RECORDING-} && -z ${__ah_marks-} ]]; then
    typeset -g __ah_marks=1 __ah_ran=''

    # The text with everything but plain characters as %XX.
    __ah_escape() {
        emulate -L zsh
        setopt no_multibyte
        local LC_ALL=C text=$1 c out='' code
        local -i i
        for ((i = 1; i <= $#text && i <= 2000; i++)); do
            c=$text[i]
            case $c in
                [a-zA-Z0-9/._~-]) out+=$c ;;
                *)
                    printf -v code '%d' "'$c"
                    printf -v code '%%%02X' $((code & 255))
                    out+=$code
                    ;;
            esac
        done
        print -rn -- "$out"
    }

    __ah_start() {
        __ah_ran=1
        printf '\e]133;C;cmdline_url=%s\a' "$(__ah_escape "$1")"
    }

    __ah_prompt() {
        local ah_status=$?
        [[ -z $__ah_ran ]] || printf '\e]133;D;%s\a' "$ah_status"
        __ah_ran=''
        printf '\e]133;A\a'
    }

    autoload -Uz add-zsh-hook
    add-zsh-hook preexec __ah_start
    # First of all, while the status is still the command's.
    typeset -ga precmd_functions
    precmd_functions=(__ah_prompt ${precmd_functions[@]})
fi
