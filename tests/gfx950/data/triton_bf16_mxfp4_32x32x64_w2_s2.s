	.amdgcn_target "amdgpu9.50-amd-amdhsa-unknown-gfx950"
	.amdhsa_code_object_version 5
	.text
	.globl	bf16_mxfp4_gemm
	.p2align	8
	.type	bf16_mxfp4_gemm,@function
bf16_mxfp4_gemm:
	s_load_dwordx8 s[8:15], s[4:5], 0x0
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	v_and_b32_e32 v3, 0x3ff, v0
	s_load_dwordx2 s[38:39], s[4:5], 0x20
	s_load_dword s22, s[4:5], 0x28
	v_readfirstlane_b32 s0, v3
	s_bfe_u32 s30, s0, 0x10006
	v_and_b32_e32 v1, 63, v0
	s_lshl_b32 s18, s30, 6
	v_or_b32_e32 v6, s18, v1
	s_lshl_b32 s33, s16, 5
	v_lshrrev_b32_e32 v7, 3, v6
	v_or_b32_e32 v8, 16, v7
	v_and_b32_e32 v4, 7, v0
	v_or_b32_e32 v5, s33, v7
	s_lshl_b32 s40, s17, 5
	s_waitcnt lgkmcnt(0)
	s_lshr_b32 s2, s22, 31
	v_or_b32_e32 v9, s33, v8
	v_or_b32_e32 v10, s40, v7
	v_lshlrev_b32_e32 v16, 3, v4
	v_cmp_gt_i32_e32 vcc, s38, v5
	s_mul_i32 s27, s22, s33
	s_add_i32 s2, s22, s2
	v_mul_lo_u32 v5, v8, s22
	s_mov_b64 s[24:25], s[10:11]
	s_bfe_i32 s26, s0, 0x10006
	v_cmp_gt_i32_e64 s[0:1], s38, v9
	s_ashr_i32 s19, s2, 1
	v_cmp_gt_i32_e64 s[2:3], s39, v10
	s_ashr_i32 s10, s22, 31
	v_add3_u32 v9, v5, v16, s27
	v_lshlrev_b32_e32 v5, 3, v6
	v_lshrrev_b32_e32 v10, 1, v6
	s_lshr_b32 s10, s10, 27
	v_bitop3_b32 v10, v10, v5, 56 bitop3:0x6c
	s_add_i32 s10, s22, s10
	v_sub_u32_e32 v5, v10, v5
	s_ashr_i32 s28, s10, 5
	v_ashrrev_i32_e32 v5, 3, v5
	v_lshlrev_b32_e32 v2, 2, v4
	s_cmp_gt_i32 s22, 0
	v_cmp_gt_i32_e64 s[10:11], s22, v16
	v_mul_lo_u32 v4, v7, s22
	v_add_u32_e32 v29, v5, v1
	s_mov_b64 s[36:37], s[14:15]
	s_cselect_b64 s[16:17], -1, 0
	s_and_b64 s[14:15], s[10:11], vcc
	v_add3_u32 v4, v4, v16, s27
	v_lshlrev_b32_e32 v30, 2, v29
	ds_bpermute_b32 v10, v30, v4
	s_and_b64 s[14:15], s[16:17], s[14:15]
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	s_and_b64 s[20:21], s[10:11], s[0:1]
	s_lshl_b32 s29, s30, 10
	v_lshrrev_b64 v[4:5], v29, s[14:15]
	v_and_b32_e32 v4, 1, v4
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b32_e32 v5, 1, v10
	v_bfrev_b32_e32 v31, 1
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	s_and_b32 s9, s9, 0xffff
	s_mov_b32 s11, 0x27000
	s_mov_b32 s10, 0x7ffffffe
	v_cndmask_b32_e64 v4, v31, v5, s[14:15]
	s_mov_b32 m0, s29
	ds_bpermute_b32 v9, v30, v9
	s_and_b64 s[14:15], s[16:17], s[20:21]
	buffer_load_dwordx4 v4, s[8:11], 0 offen lds
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	v_or_b32_e32 v11, s40, v8
	v_lshlrev_b32_e32 v6, 2, v6
	v_lshrrev_b64 v[4:5], v29, s[14:15]
	v_and_b32_e32 v4, 1, v4
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b32_e32 v5, 1, v9
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	s_mul_i32 s23, s19, s40
	s_add_i32 m0, s29, 0x800
	v_cndmask_b32_e64 v4, v31, v5, s[14:15]
	v_cmp_gt_i32_e64 s[14:15], s19, v2
	s_and_b64 s[14:15], s[14:15], s[16:17]
	v_mad_u64_u32 v[20:21], s[16:17], v8, s19, v[2:3]
	v_lshlrev_b32_e32 v5, 2, v1
	v_mov_b32_e32 v8, 0x108
	v_bitop3_b32 v5, s26, v5, v8 bitop3:0x6c
	v_sub_u32_e32 v5, v5, v6
	v_ashrrev_i32_e32 v5, 2, v5
	v_mad_u64_u32 v[18:19], s[16:17], v7, s19, v[2:3]
	v_add_u32_e32 v35, v5, v1
	buffer_load_dwordx4 v4, s[8:11], 0 offen lds
	v_add_u32_e32 v4, s23, v18
	s_and_b64 s[16:17], s[14:15], s[2:3]
	v_lshlrev_b32_e32 v36, 2, v35
	v_cmp_gt_i32_e64 s[4:5], s39, v11
	ds_bpermute_b32 v6, v36, v4
	v_cndmask_b32_e64 v4, 0, 1, s[16:17]
	s_and_b64 s[20:21], s[14:15], s[4:5]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	s_cmp_eq_u32 s30, 0
	s_cselect_b64 s[34:35], -1, 0
	v_lshrrev_b64 v[4:5], v35, s[14:15]
	v_and_b32_e32 v4, 1, v4
	s_lshl_b32 s30, s30, 8
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	v_add_u32_e32 v7, s23, v20
	s_and_b32 s25, s25, 0xffff
	s_mov_b32 s26, s10
	s_mov_b32 s27, s11
	s_add_i32 m0, s30, 0x2000
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v4, v31, v6, s[14:15]
	buffer_load_dword v4, s[24:27], 0 offen lds
	ds_bpermute_b32 v6, v36, v7
	v_cndmask_b32_e64 v4, 0, 1, s[20:21]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	v_bfe_u32 v28, v0, 1, 5
	s_add_i32 m0, s30, 0x2200
	v_lshrrev_b64 v[4:5], v35, s[14:15]
	v_and_b32_e32 v4, 1, v4
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	v_or_b32_e32 v12, s40, v28
	s_cmp_gt_i32 s22, 31
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v4, v31, v6, s[14:15]
	v_cmp_gt_i32_e64 s[6:7], s39, v12
	s_mul_i32 s31, s28, s40
	buffer_load_dword v4, s[24:27], 0 offen lds
	s_cselect_b64 s[16:17], -1, 0
	s_cmp_gt_i32 s22, 63
	v_mul_lo_u32 v4, s28, v28
	s_cselect_b64 s[20:21], -1, 0
	v_add_u32_e32 v37, s31, v4
	s_and_b64 s[16:17], s[6:7], s[16:17]
	v_add_u32_e32 v4, 1, v37
	s_and_b32 s13, s13, 0xffff
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	v_cndmask_b32_e64 v5, v31, v37, s[16:17]
	s_and_b64 s[16:17], s[6:7], s[20:21]
	v_cndmask_b32_e64 v4, v31, v4, s[16:17]
	buffer_load_ubyte v6, v5, s[12:15], 0 offen
	buffer_load_ubyte v7, v4, s[12:15], 0 offen
	v_and_b32_e32 v17, 31, v0
	v_and_b32_e32 v19, 32, v0
	s_sub_i32 s31, s22, 64
	s_mov_b32 s45, 0
	v_add_u32_e32 v0, 0, v28
	s_cmp_lt_i32 s31, 1
	v_bfe_i32 v32, v3, 3, 1
	v_lshlrev_b32_e32 v21, 7, v17
	v_lshlrev_b32_e32 v26, 3, v3
	v_lshrrev_b32_e32 v27, 1, v19
	v_lshlrev_b32_e32 v34, 5, v3
	v_lshrrev_b32_e32 v33, 3, v19
	s_waitcnt vmcnt(1)
	ds_write_b8 v0, v6 offset:10240
	s_waitcnt vmcnt(0)
	ds_write_b8 v0, v7 offset:10272
	s_cbranch_scc1 .LBB0_3
	s_movk_i32 s14, 0x70
	v_sub_u32_e32 v38, s19, v2
	v_bitop3_b32 v2, v26, v27, s14 bitop3:0x6c
	s_movk_i32 s14, 0x60
	v_and_b32_e32 v0, 0x70, v26
	v_bitop3_b32 v42, v2, s14, v21 bitop3:0x36
	s_movk_i32 s14, 0x2e0
	v_bitop3_b32 v39, v0, v21, v27 bitop3:0xde
	v_bitop3_b32 v40, v2, 32, v21 bitop3:0x36
	v_bitop3_b32 v41, v2, 64, v21 bitop3:0x36
	v_and_b32_e32 v0, 0x108, v32
	v_and_or_b32 v2, v34, s14, v33
	v_or_b32_e32 v43, v2, v0
	v_bitop3_b32 v44, v2, 8, v0 bitop3:0x36
	v_add_u32_e32 v0, s18, v1
	v_lshrrev_b32_e32 v0, 3, v0
	v_add_u32_e32 v0, s33, v0
	v_add_u32_e32 v1, 16, v0
	v_mad_u64_u32 v[22:23], s[14:15], s22, v1, v[16:17]
	v_mad_u64_u32 v[24:25], s[14:15], s22, v0, v[16:17]
	v_mov_b32_e32 v0, 0
	s_add_i32 s41, s28, -1
	s_mov_b32 s42, 64
	s_movk_i32 s46, 0x2000
	s_movk_i32 s14, 0x2800
	s_movk_i32 s43, 0xff
	v_mov_b32_e32 v23, 0x7fc0
	s_mov_b32 s44, 0x5040100
	v_mov_b32_e32 v25, 64
	s_mov_b32 s47, 0
	v_mov_b32_e32 v1, v0
	v_mov_b32_e32 v2, v0
	v_mov_b32_e32 v3, v0
	v_mov_b32_e32 v4, v0
	v_mov_b32_e32 v5, v0
	v_mov_b32_e32 v6, v0
	v_mov_b32_e32 v7, v0
	v_mov_b32_e32 v8, v0
	v_mov_b32_e32 v9, v0
	v_mov_b32_e32 v10, v0
	v_mov_b32_e32 v11, v0
	v_mov_b32_e32 v12, v0
	v_mov_b32_e32 v13, v0
	v_mov_b32_e32 v14, v0
	v_mov_b32_e32 v15, v0
.LBB0_2:
	s_add_i32 s18, s47, 1
	v_add_u32_e32 v45, s42, v16
	s_cmp_lt_i32 s18, 2
	v_cmp_gt_i32_e64 s[16:17], s22, v45
	v_add_u32_e32 v46, s42, v24
	s_cselect_b32 s47, s18, 0
	s_and_b64 s[18:19], vcc, s[16:17]
	v_add_u32_e32 v47, s42, v22
	ds_bpermute_b32 v45, v30, v46
	s_ashr_i32 s20, s42, 1
	v_cndmask_b32_e64 v46, 0, 1, s[18:19]
	s_and_b64 s[16:17], s[0:1], s[16:17]
	ds_bpermute_b32 v51, v30, v47
	v_add_u32_e32 v56, s46, v43
	v_add_u32_e32 v57, s46, v44
	v_cndmask_b32_e64 v47, 0, 1, s[16:17]
	v_cmp_lt_i32_e64 s[16:17], s20, v38
	s_add_i32 s46, s20, s23
	v_cmp_ne_u32_e64 s[18:19], 0, v46
	v_cmp_ne_u32_e64 s[20:21], 0, v47
	v_add_u32_e32 v59, s46, v18
	v_lshrrev_b64 v[46:47], v29, s[18:19]
	s_and_b64 s[18:19], s[2:3], s[16:17]
	v_lshrrev_b64 v[48:49], v29, s[20:21]
	v_cndmask_b32_e64 v47, 0, 1, s[18:19]
	s_and_b64 s[16:17], s[4:5], s[16:17]
	ds_bpermute_b32 v59, v36, v59
	v_add_u32_e32 v52, s45, v39
	v_add_u32_e32 v53, s45, v40
	v_add_u32_e32 v54, s45, v41
	v_add_u32_e32 v55, s45, v42
	s_lshl_b32 s45, s47, 12
	v_cndmask_b32_e64 v49, 0, 1, s[16:17]
	v_and_b32_e32 v62, 1, v46
	v_and_b32_e32 v46, 1, v48
	v_cmp_ne_u32_e64 s[16:17], 0, v47
	s_add_i32 s50, s45, s29
	s_waitcnt lgkmcnt(2)
	v_lshlrev_b32_e32 v45, 1, v45
	v_cmp_eq_u32_e64 s[20:21], 1, v46
	v_lshrrev_b64 v[46:47], v35, s[16:17]
	v_cmp_eq_u32_e64 s[16:17], 1, v62
	s_lshl_b32 s49, s47, 10
	v_add_u32_e32 v60, s46, v20
	s_waitcnt lgkmcnt(1)
	v_lshlrev_b32_e32 v51, 1, v51
	v_cndmask_b32_e64 v45, v31, v45, s[16:17]
	v_and_b32_e32 v46, 1, v46
	s_mov_b32 m0, s50
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_add_i32 s51, s49, s30
	ds_bpermute_b32 v60, v36, v60
	v_cndmask_b32_e64 v47, v31, v51, s[20:21]
	buffer_load_dwordx4 v45, s[8:11], 0 offen lds
	s_add_i32 m0, s50, 0x800
	v_cmp_eq_u32_e64 s[16:17], 1, v46
	s_mov_b32 s26, s10
	s_mov_b32 s27, s11
	v_cmp_ne_u32_e64 s[18:19], 0, v49
	buffer_load_dwordx4 v47, s[8:11], 0 offen lds
	s_add_i32 m0, s51, 0x2000
	v_cndmask_b32_e64 v45, v31, v59, s[16:17]
	s_ashr_i32 s48, s42, 5
	s_add_i32 s46, s49, 0x2000
	v_lshrrev_b64 v[48:49], v35, s[18:19]
	buffer_load_dword v45, s[24:27], 0 offen lds
	s_add_i32 m0, s51, 0x2200
	v_and_b32_e32 v48, 1, v48
	s_cmp_lt_i32 s48, s28
	v_cmp_eq_u32_e64 s[18:19], 1, v48
	s_cselect_b64 s[16:17], -1, 0
	s_cmp_lt_i32 s48, s41
	v_add_u32_e32 v58, s48, v37
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v46, v31, v60, s[18:19]
	s_cselect_b64 s[18:19], -1, 0
	s_and_b64 s[16:17], s[6:7], s[16:17]
	v_add_u32_e32 v50, s14, v17
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	v_add_u32_e32 v61, 1, v58
	v_cndmask_b32_e64 v51, v31, v58, s[16:17]
	s_and_b64 s[16:17], s[6:7], s[18:19]
	ds_read_b128 v[80:83], v52
	ds_read_b128 v[84:87], v53
	ds_read_b128 v[88:91], v54
	ds_read_b128 v[92:95], v55
	buffer_load_dword v46, s[24:27], 0 offen lds
	v_cndmask_b32_e64 v52, v31, v61, s[16:17]
	buffer_load_ubyte v96, v51, s[12:15], 0 offen
	buffer_load_ubyte v97, v52, s[12:15], 0 offen
	ds_read_u8 v45, v50
	ds_read_u8 v50, v50 offset:32
	ds_read2_b32 v[46:47], v56 offset1:4
	ds_read2_b32 v[48:49], v57 offset1:4
	s_waitcnt lgkmcnt(0)
	v_lshlrev_b16_e32 v51, 7, v45
	v_lshlrev_b16_e32 v52, 7, v50
	v_max_u16_sdwa v51, v51, v25 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_max_u16_sdwa v52, v52, v25 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_e64 s[14:15], s43, v50
	v_cvt_scalef32_pk_bf16_fp4 v50, v46, v51
	v_cvt_scalef32_pk_bf16_fp4 v54, v46, v51 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v55, v46, v51 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v46, v46, v51 op_sel:[1,1,0]
	v_cmp_eq_u16_e64 s[16:17], s43, v45
	v_cvt_scalef32_pk_bf16_fp4 v53, v47, v52
	v_cvt_scalef32_pk_bf16_fp4 v56, v48, v51
	v_cvt_scalef32_pk_bf16_fp4 v57, v48, v51 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v58, v47, v52 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v59, v47, v52 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v47, v47, v52 op_sel:[1,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v60, v48, v51 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v48, v48, v51 op_sel:[1,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v51, v49, v52
	v_cvt_scalef32_pk_bf16_fp4 v61, v49, v52 op_sel:[1,0,0]
	v_cvt_scalef32_pk_bf16_fp4 v62, v49, v52 op_sel:[0,1,0]
	v_cvt_scalef32_pk_bf16_fp4 v49, v49, v52 op_sel:[1,1,0]
	v_cndmask_b32_e64 v45, v50, v23, s[16:17]
	v_cndmask_b32_e64 v52, v54, v23, s[16:17]
	v_lshrrev_b32_e32 v54, 16, v54
	v_cndmask_b32_e64 v63, v55, v23, s[16:17]
	v_lshrrev_b32_e32 v55, 16, v55
	v_cndmask_b32_e64 v64, v46, v23, s[16:17]
	v_lshrrev_b32_e32 v46, 16, v46
	v_lshrrev_b32_e32 v50, 16, v50
	v_cndmask_b32_e64 v69, v48, v23, s[16:17]
	v_lshrrev_b32_e32 v48, 16, v48
	v_cndmask_b32_e64 v73, v47, v23, s[14:15]
	v_lshrrev_b32_e32 v74, 16, v47
	v_cndmask_b32_e64 v78, v49, v23, s[14:15]
	v_lshrrev_b32_e32 v79, 16, v49
	v_cndmask_b32_e64 v47, v54, v23, s[16:17]
	v_cndmask_b32_e64 v49, v55, v23, s[16:17]
	v_cndmask_b32_e64 v46, v46, v23, s[16:17]
	v_cndmask_b32_e64 v50, v50, v23, s[16:17]
	v_cndmask_b32_e64 v55, v48, v23, s[16:17]
	v_perm_b32 v47, v47, v52, s44
	v_perm_b32 v48, v49, v63, s44
	v_perm_b32 v49, v46, v64, s44
	v_perm_b32 v46, v50, v45, s44
	v_lshrrev_b32_e32 v65, 16, v56
	v_cndmask_b32_e64 v66, v57, v23, s[16:17]
	v_mfma_f32_32x32x16_bf16 v[0:15], v[46:49], v[80:83], v[0:15]
	v_lshrrev_b32_e32 v57, 16, v57
	v_cndmask_b32_e64 v67, v60, v23, s[16:17]
	v_lshrrev_b32_e32 v60, 16, v60
	v_lshrrev_b32_e32 v68, 16, v53
	v_lshrrev_b32_e32 v70, 16, v51
	v_cndmask_b32_e64 v56, v56, v23, s[16:17]
	v_cndmask_b32_e64 v71, v53, v23, s[14:15]
	v_lshrrev_b32_e32 v53, 16, v58
	v_cndmask_b32_e64 v75, v51, v23, s[14:15]
	v_cndmask_b32_e64 v51, v57, v23, s[16:17]
	v_cndmask_b32_e64 v54, v60, v23, s[16:17]
	v_cndmask_b32_e64 v45, v65, v23, s[16:17]
	v_cndmask_b32_e64 v57, v53, v23, s[14:15]
	v_perm_b32 v51, v51, v66, s44
	v_perm_b32 v52, v54, v67, s44
	v_perm_b32 v53, v55, v69, s44
	v_perm_b32 v50, v45, v56, s44
	v_cndmask_b32_e64 v72, v58, v23, s[14:15]
	v_cndmask_b32_e64 v58, v59, v23, s[14:15]
	v_mfma_f32_32x32x16_bf16 v[0:15], v[50:53], v[84:87], v[0:15]
	v_lshrrev_b32_e32 v59, 16, v59
	v_cndmask_b32_e64 v59, v59, v23, s[14:15]
	v_cndmask_b32_e64 v45, v68, v23, s[14:15]
	v_cndmask_b32_e64 v46, v74, v23, s[14:15]
	v_perm_b32 v47, v57, v72, s44
	v_perm_b32 v48, v59, v58, s44
	v_perm_b32 v49, v46, v73, s44
	v_perm_b32 v46, v45, v71, s44
	v_cndmask_b32_e64 v76, v61, v23, s[14:15]
	v_lshrrev_b32_e32 v61, 16, v61
	v_mfma_f32_32x32x16_bf16 v[0:15], v[46:49], v[88:91], v[0:15]
	v_cndmask_b32_e64 v77, v62, v23, s[14:15]
	v_lshrrev_b32_e32 v62, 16, v62
	v_cndmask_b32_e64 v54, v70, v23, s[14:15]
	v_cndmask_b32_e64 v45, v61, v23, s[14:15]
	v_cndmask_b32_e64 v50, v62, v23, s[14:15]
	v_cndmask_b32_e64 v53, v79, v23, s[14:15]
	v_perm_b32 v51, v45, v76, s44
	v_perm_b32 v52, v50, v77, s44
	v_perm_b32 v53, v53, v78, s44
	v_perm_b32 v50, v54, v75, s44
	s_lshl_b32 s15, s47, 6
	s_add_i32 s16, s42, 64
	v_mfma_f32_32x32x16_bf16 v[0:15], v[50:53], v[92:95], v[0:15]
	s_add_i32 s14, s15, 0x2800
	v_add_u32_e32 v45, s15, v28
	s_cmp_lt_i32 s42, s31
	s_mov_b32 s42, s16
	s_barrier
	s_waitcnt vmcnt(1)
	ds_write_b8 v45, v96 offset:10240
	s_waitcnt vmcnt(0)
	ds_write_b8 v45, v97 offset:10272
	s_cbranch_scc1 .LBB0_2
	s_branch .LBB0_4
.LBB0_3:
	v_mov_b32_e32 v15, 0
	s_movk_i32 s46, 0x2000
	s_movk_i32 s14, 0x2800
	v_mov_b32_e32 v14, v15
	v_mov_b32_e32 v13, v15
	v_mov_b32_e32 v12, v15
	v_mov_b32_e32 v11, v15
	v_mov_b32_e32 v10, v15
	v_mov_b32_e32 v9, v15
	v_mov_b32_e32 v8, v15
	v_mov_b32_e32 v7, v15
	v_mov_b32_e32 v6, v15
	v_mov_b32_e32 v5, v15
	v_mov_b32_e32 v4, v15
	v_mov_b32_e32 v3, v15
	v_mov_b32_e32 v2, v15
	v_mov_b32_e32 v1, v15
	v_mov_b32_e32 v0, v15
.LBB0_4:
	s_add_i32 s22, s22, 63
	s_cmp_lt_i32 s22, 64
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_cbranch_scc1 .LBB0_6
	v_add_u32_e32 v16, s14, v17
	v_and_b32_e32 v20, 0x2e0, v34
	v_and_b32_e32 v22, 0x108, v32
	ds_read_u8 v18, v16
	ds_read_u8 v16, v16 offset:32
	v_or3_b32 v20, v33, v20, v22
	v_xad_u32 v22, v20, 8, s46
	v_add_u32_e32 v20, s46, v20
	ds_read2_b32 v[32:33], v20 offset1:4
	ds_read2_b32 v[24:25], v22 offset1:4
	s_waitcnt lgkmcnt(2)
	v_lshlrev_b16_e32 v22, 7, v16
	v_mov_b32_e32 v28, 64
	s_movk_i32 s0, 0xff
	v_max_u16_sdwa v40, v22, v28 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_mov_b32_e32 v41, 0x7fc0
	v_cmp_eq_u16_e32 vcc, s0, v16
	s_waitcnt lgkmcnt(1)
	v_cvt_scalef32_pk_bf16_fp4 v29, v33, v40 op_sel:[1,1,0]
	s_mov_b32 s2, 0x5040100
	v_cndmask_b32_e32 v30, v29, v41, vcc
	v_lshrrev_b32_e32 v29, 16, v29
	v_cndmask_b32_e32 v29, v29, v41, vcc
	v_perm_b32 v31, v29, v30, s2
	v_cvt_scalef32_pk_bf16_fp4 v29, v33, v40 op_sel:[0,1,0]
	v_cndmask_b32_e32 v30, v29, v41, vcc
	v_lshrrev_b32_e32 v29, 16, v29
	v_cndmask_b32_e32 v29, v29, v41, vcc
	v_perm_b32 v30, v29, v30, s2
	v_cvt_scalef32_pk_bf16_fp4 v29, v33, v40 op_sel:[1,0,0]
	v_cndmask_b32_e32 v34, v29, v41, vcc
	v_lshrrev_b32_e32 v29, 16, v29
	v_cndmask_b32_e32 v29, v29, v41, vcc
	v_cvt_scalef32_pk_bf16_fp4 v33, v33, v40
	v_perm_b32 v29, v29, v34, s2
	v_lshrrev_b32_e32 v34, 16, v33
	v_cndmask_b32_e32 v43, v33, v41, vcc
	v_lshlrev_b16_e32 v33, 7, v18
	v_max_u16_sdwa v28, v33, v28 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
	v_cmp_eq_u16_e64 s[0:1], s0, v18
	s_waitcnt lgkmcnt(0)
	v_cvt_scalef32_pk_bf16_fp4 v33, v24, v28 op_sel:[1,1,0]
	v_cndmask_b32_e32 v42, v34, v41, vcc
	v_cndmask_b32_e64 v18, v33, v41, s[0:1]
	v_lshrrev_b32_e32 v33, 16, v33
	v_cndmask_b32_e64 v33, v33, v41, s[0:1]
	v_perm_b32 v35, v33, v18, s2
	v_cvt_scalef32_pk_bf16_fp4 v18, v24, v28 op_sel:[0,1,0]
	v_cndmask_b32_e64 v33, v18, v41, s[0:1]
	v_lshrrev_b32_e32 v18, 16, v18
	v_cndmask_b32_e64 v18, v18, v41, s[0:1]
	v_perm_b32 v34, v18, v33, s2
	v_cvt_scalef32_pk_bf16_fp4 v18, v24, v28 op_sel:[1,0,0]
	v_cndmask_b32_e64 v33, v18, v41, s[0:1]
	v_lshrrev_b32_e32 v18, 16, v18
	v_cndmask_b32_e64 v18, v18, v41, s[0:1]
	v_perm_b32 v33, v18, v33, s2
	v_cvt_scalef32_pk_bf16_fp4 v18, v32, v28 op_sel:[1,1,0]
	v_cndmask_b32_e64 v36, v18, v41, s[0:1]
	v_lshrrev_b32_e32 v18, 16, v18
	v_cndmask_b32_e64 v18, v18, v41, s[0:1]
	v_perm_b32 v39, v18, v36, s2
	v_cvt_scalef32_pk_bf16_fp4 v18, v32, v28 op_sel:[0,1,0]
	v_cndmask_b32_e64 v36, v18, v41, s[0:1]
	v_lshrrev_b32_e32 v18, 16, v18
	v_cndmask_b32_e64 v18, v18, v41, s[0:1]
	v_perm_b32 v38, v18, v36, s2
	v_cvt_scalef32_pk_bf16_fp4 v18, v32, v28 op_sel:[1,0,0]
	v_cndmask_b32_e64 v36, v18, v41, s[0:1]
	v_lshrrev_b32_e32 v18, 16, v18
	v_cndmask_b32_e64 v18, v18, v41, s[0:1]
	v_perm_b32 v37, v18, v36, s2
	v_cvt_scalef32_pk_bf16_fp4 v18, v32, v28
	v_and_b32_e32 v36, 0x70, v26
	v_lshrrev_b32_e32 v32, 16, v18
	v_bitop3_b32 v44, v36, v21, v27 bitop3:0xde
	v_cndmask_b32_e64 v32, v32, v41, s[0:1]
	v_cndmask_b32_e64 v18, v18, v41, s[0:1]
	v_xad_u32 v36, v44, 32, s45
	v_add_u32_e32 v45, s45, v44
	ds_read_b128 v[46:49], v36
	ds_read_b128 v[50:53], v45
	v_perm_b32 v36, v32, v18, s2
	v_cvt_scalef32_pk_bf16_fp4 v18, v24, v28
	v_lshrrev_b32_e32 v24, 16, v18
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[36:39], v[50:53], v[0:15]
	v_cndmask_b32_e64 v24, v24, v41, s[0:1]
	v_cndmask_b32_e64 v18, v18, v41, s[0:1]
	v_perm_b32 v32, v24, v18, s2
	v_cvt_scalef32_pk_bf16_fp4 v22, v25, v40 op_sel:[1,1,0]
	s_movk_i32 s0, 0x70
	v_cndmask_b32_e32 v16, v22, v41, vcc
	v_lshrrev_b32_e32 v22, 16, v22
	v_bitop3_b32 v26, v26, v27, s0 bitop3:0x6c
	s_movk_i32 s0, 0x60
	v_mfma_f32_32x32x16_bf16 v[0:15], v[32:35], v[46:49], v[0:15]
	v_cndmask_b32_e32 v22, v22, v41, vcc
	v_bitop3_b32 v18, v26, s0, v21 bitop3:0x36
	v_perm_b32 v23, v22, v16, s2
	v_cvt_scalef32_pk_bf16_fp4 v16, v25, v40 op_sel:[0,1,0]
	v_add_u32_e32 v18, s45, v18
	v_cndmask_b32_e32 v22, v16, v41, vcc
	v_lshrrev_b32_e32 v16, 16, v16
	v_xad_u32 v21, v44, 64, s45
	ds_read_b128 v[32:35], v18
	ds_read_b128 v[36:39], v21
	v_perm_b32 v28, v42, v43, s2
	v_cndmask_b32_e32 v16, v16, v41, vcc
	v_perm_b32 v22, v16, v22, s2
	v_cvt_scalef32_pk_bf16_fp4 v16, v25, v40 op_sel:[1,0,0]
	v_cndmask_b32_e32 v20, v16, v41, vcc
	v_lshrrev_b32_e32 v16, 16, v16
	v_cndmask_b32_e32 v16, v16, v41, vcc
	v_perm_b32 v21, v16, v20, s2
	v_cvt_scalef32_pk_bf16_fp4 v16, v25, v40
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_bf16 v[0:15], v[28:31], v[36:39], v[0:15]
	v_lshrrev_b32_e32 v18, 16, v16
	v_cndmask_b32_e32 v18, v18, v41, vcc
	v_cndmask_b32_e32 v16, v16, v41, vcc
	v_perm_b32 v20, v18, v16, s2
	s_nop 1
	v_mfma_f32_32x32x16_bf16 v[0:15], v[20:23], v[32:35], v[0:15]
.LBB0_6:
	v_lshrrev_b32_e32 v16, 2, v19
	v_or_b32_e32 v18, s40, v16
	v_or_b32_e32 v23, 19, v18
	v_or_b32_e32 v30, 4, v18
	v_or_b32_e32 v34, s33, v17
	v_cmp_gt_i32_e32 vcc, s38, v34
	v_cmp_gt_i32_e64 s[8:9], s39, v30
	v_cmp_gt_i32_e64 s[22:23], s39, v23
	s_and_b64 s[50:51], vcc, s[8:9]
	s_and_b64 s[8:9], vcc, s[22:23]
	s_mul_i32 s22, s39, s33
	v_or_b32_e32 v19, 23, v18
	v_or_b32_e32 v20, 22, v18
	v_or_b32_e32 v21, 21, v18
	v_or_b32_e32 v22, 20, v18
	v_or_b32_e32 v24, 18, v18
	v_or_b32_e32 v25, 17, v18
	v_or_b32_e32 v26, 16, v18
	v_or_b32_e32 v27, 7, v18
	v_or_b32_e32 v28, 6, v18
	v_or_b32_e32 v29, 5, v18
	v_or_b32_e32 v31, 3, v18
	v_or_b32_e32 v32, 2, v18
	v_or_b32_e32 v33, 1, v18
	v_cmp_gt_i32_e64 s[0:1], s39, v18
	v_cvt_pk_bf16_f32 v0, v0, v1
	v_cvt_pk_bf16_f32 v1, v2, v3
	v_cvt_pk_bf16_f32 v2, v4, v5
	v_cvt_pk_bf16_f32 v4, v8, v9
	v_mul_lo_u32 v8, s39, v17
	s_add_i32 s22, s22, s40
	v_cmp_gt_i32_e64 s[2:3], s39, v33
	v_cmp_gt_i32_e64 s[4:5], s39, v32
	v_cmp_gt_i32_e64 s[6:7], s39, v31
	v_cmp_gt_i32_e64 s[10:11], s39, v29
	v_cmp_gt_i32_e64 s[12:13], s39, v28
	v_cmp_gt_i32_e64 s[14:15], s39, v27
	v_cmp_gt_i32_e64 s[16:17], s39, v26
	v_cmp_gt_i32_e64 s[18:19], s39, v25
	v_cmp_gt_i32_e64 s[20:21], s39, v24
	v_cmp_gt_i32_e64 s[24:25], s39, v22
	v_cmp_gt_i32_e64 s[26:27], s39, v21
	v_cmp_gt_i32_e64 s[28:29], s39, v20
	v_cmp_gt_i32_e64 s[30:31], s39, v19
	s_and_b64 s[42:43], vcc, s[0:1]
	v_add_u32_e32 v8, s22, v8
	s_and_b64 s[44:45], vcc, s[2:3]
	s_and_b64 s[46:47], vcc, s[4:5]
	s_and_b64 s[48:49], vcc, s[6:7]
	s_and_b64 s[10:11], vcc, s[10:11]
	s_and_b64 s[12:13], vcc, s[12:13]
	s_and_b64 s[14:15], vcc, s[14:15]
	s_and_b64 s[16:17], vcc, s[16:17]
	s_and_b64 s[18:19], vcc, s[18:19]
	s_and_b64 s[20:21], vcc, s[20:21]
	s_and_b64 s[6:7], vcc, s[24:25]
	s_and_b64 s[4:5], vcc, s[26:27]
	s_and_b64 s[2:3], vcc, s[28:29]
	s_and_b64 s[0:1], vcc, s[30:31]
	v_add_lshl_u32 v8, v8, v16, 1
	v_bfrev_b32_e32 v16, 1
	s_and_b64 vcc, s[42:43], s[34:35]
	v_permlane32_swap_b32_e32 v0, v2
	s_and_b32 s37, s37, 0xffff
	s_mov_b32 s39, 0x27000
	s_mov_b32 s38, 0x7ffffffe
	v_cndmask_b32_e32 v18, v16, v8, vcc
	v_lshrrev_b32_e32 v9, 16, v0
	buffer_store_short v0, v18, s[36:39], 0 offen
	v_add_u32_e32 v0, 2, v8
	s_and_b64 vcc, s[44:45], s[34:35]
	v_cndmask_b32_e32 v0, v16, v0, vcc
	v_cvt_pk_bf16_f32 v3, v6, v7
	buffer_store_short v9, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 4, v8
	s_and_b64 vcc, s[46:47], s[34:35]
	v_permlane32_swap_b32_e32 v1, v3
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v1, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 6, v8
	s_and_b64 vcc, s[48:49], s[34:35]
	v_cvt_pk_bf16_f32 v5, v10, v11
	v_lshrrev_b32_e32 v10, 16, v1
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v10, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 8, v8
	s_and_b64 vcc, s[50:51], s[34:35]
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v2, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 10, v8
	s_and_b64 vcc, s[10:11], s[34:35]
	v_lshrrev_b32_e32 v11, 16, v2
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v11, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 12, v8
	s_and_b64 vcc, s[12:13], s[34:35]
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v3, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 14, v8
	s_and_b64 vcc, s[14:15], s[34:35]
	v_cvt_pk_bf16_f32 v6, v12, v13
	v_lshrrev_b32_e32 v12, 16, v3
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v12, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 32, v8
	s_and_b64 vcc, s[16:17], s[34:35]
	v_permlane32_swap_b32_e32 v4, v6
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v4, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 34, v8
	s_and_b64 vcc, s[18:19], s[34:35]
	v_lshrrev_b32_e32 v13, 16, v4
	v_cndmask_b32_e32 v0, v16, v0, vcc
	v_cvt_pk_bf16_f32 v7, v14, v15
	buffer_store_short v13, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 36, v8
	s_and_b64 vcc, s[20:21], s[34:35]
	v_permlane32_swap_b32_e32 v5, v7
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v5, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 38, v8
	s_and_b64 vcc, s[8:9], s[34:35]
	v_lshrrev_b32_e32 v14, 16, v5
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v14, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 40, v8
	s_and_b64 vcc, s[6:7], s[34:35]
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v6, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 42, v8
	s_and_b64 vcc, s[4:5], s[34:35]
	v_lshrrev_b32_e32 v15, 16, v6
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v15, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 44, v8
	s_and_b64 vcc, s[2:3], s[34:35]
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v7, v0, s[36:39], 0 offen
	v_add_u32_e32 v0, 46, v8
	s_and_b64 vcc, s[0:1], s[34:35]
	v_lshrrev_b32_e32 v17, 16, v7
	v_cndmask_b32_e32 v0, v16, v0, vcc
	buffer_store_short v17, v0, s[36:39], 0 offen
	s_endpgm
.Lfunc_end0:
	.size	bf16_mxfp4_gemm, .Lfunc_end0-bf16_mxfp4_gemm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel bf16_mxfp4_gemm
		.amdhsa_group_segment_fixed_size 10368
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 320
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 1
		.amdhsa_user_sgpr_queue_ptr 1
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 1
		.amdhsa_user_sgpr_kernarg_preload_length 8
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 1
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 2
		.amdhsa_next_free_vgpr 98
		.amdhsa_next_free_sgpr 52
		.amdhsa_accum_offset 100
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
	.section	.AMDGPU.csdata,"",@progbits
	.text
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         24
        .size:           8
        .value_kind:     global_buffer
      - .offset:         32
        .size:           4
        .value_kind:     by_value
      - .offset:         36
        .size:           4
        .value_kind:     by_value
      - .offset:         40
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         48
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         56
        .size:           8
        .value_kind:     global_buffer
      - .offset:         64
        .size:           4
        .value_kind:     hidden_block_count_x
      - .offset:         68
        .size:           4
        .value_kind:     hidden_block_count_y
      - .offset:         72
        .size:           4
        .value_kind:     hidden_block_count_z
      - .offset:         76
        .size:           2
        .value_kind:     hidden_group_size_x
      - .offset:         78
        .size:           2
        .value_kind:     hidden_group_size_y
      - .offset:         80
        .size:           2
        .value_kind:     hidden_group_size_z
      - .offset:         82
        .size:           2
        .value_kind:     hidden_remainder_x
      - .offset:         84
        .size:           2
        .value_kind:     hidden_remainder_y
      - .offset:         86
        .size:           2
        .value_kind:     hidden_remainder_z
      - .offset:         104
        .size:           8
        .value_kind:     hidden_global_offset_x
      - .offset:         112
        .size:           8
        .value_kind:     hidden_global_offset_y
      - .offset:         120
        .size:           8
        .value_kind:     hidden_global_offset_z
      - .offset:         128
        .size:           2
        .value_kind:     hidden_grid_dims
      - .offset:         144
        .size:           8
        .value_kind:     hidden_hostcall_buffer
      - .offset:         152
        .size:           8
        .value_kind:     hidden_multigrid_sync_arg
      - .offset:         160
        .size:           8
        .value_kind:     hidden_heap_v1
      - .offset:         168
        .size:           8
        .value_kind:     hidden_default_queue
      - .offset:         176
        .size:           8
        .value_kind:     hidden_completion_action
      - .offset:         184
        .size:           4
        .value_kind:     hidden_dynamic_lds_size
      - .offset:         264
        .size:           8
        .value_kind:     hidden_queue_ptr
    .group_segment_fixed_size: 10368
    .kernarg_segment_align: 8
    .kernarg_segment_size: 320
    .max_flat_workgroup_size: 128
    .name:           bf16_mxfp4_gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     58
    .sgpr_spill_count: 0
    .symbol:         bf16_mxfp4_gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     98
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgpu9.50-amd-amdhsa-unknown-gfx950
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
